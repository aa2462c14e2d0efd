"""What `import fedkeel as fk` promises."""

import subprocess
import sys

import fedkeel as fk

PROMISED = {
    "Task", "FederatedData", "Algorithm", "Rule", "World", "train", "Run", "SGD", "Adam", "Adagrad", "Yogi", "Proximal",
    "Guess", "UniformSteps", "FixedSteps", "Epochs", "algorithm", "tasks", "load", "resume", "Nova", "Samples",
    "Uniform", "Up", "Me", "End", "View", "Reports", "Plan", "Local", "cross_entropy", "FedkeelError",
    "InputError", "ClientError", "MissingExtra",
}  # fmt: skip


def test_every_promised_name_is_exported_and_every_exported_name_is_there():
    assert set(fk.__all__) >= PROMISED
    assert list(fk.__all__) == sorted(set(fk.__all__), key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    for name in fk.__all__:
        assert getattr(fk, name) is not None


def test_completion_shows_the_public_names_and_nothing_else():
    assert dir(fk) == sorted([*fk.__all__, "data"]) and "compare" in dir(fk)


def test_every_public_class_and_function_is_documented():
    for name in fk.__all__:
        thing = getattr(fk, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name


def test_importing_needs_no_extra_and_touches_no_network():
    code = (
        "import socket, sys\n"
        "def no(*a, **k): raise SystemExit('network')\n"
        "socket.socket.connect = no\n"
        "for extra in ('pandas', 'ray', 'flwr', 'matplotlib', 'wandb', 'datasets'): sys.modules[extra] = None\n"
        "import fedkeel\n"
        "print(fedkeel.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fk.__version__
