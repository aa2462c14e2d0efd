import pickle
from importlib import metadata
from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel.errors import check, install_command, is_count, is_number, unknown


@pytest.mark.parametrize(
    ("error", "builtin"), [(fk.InputError, ValueError), (fk.MissingExtra, ImportError), (fk.ClientError, RuntimeError)]
)
def test_every_error_is_ours_and_also_the_builtin_one(error, builtin):
    assert issubclass(error, fk.FedkeelError)
    assert issubclass(error, builtin)


def test_a_bad_parameter_gets_the_uniform_message():
    with pytest.raises(fk.InputError) as caught:
        check(False, "SGD", "lr", "> 0", -1)
    assert str(caught.value) == "The 'lr' parameter of SGD must be > 0. Got -1 instead."


def test_an_object_owns_the_message_by_its_class():
    with pytest.raises(fk.InputError, match="of FixedSteps must be"):
        fk.FixedSteps(0)


def test_a_missing_extra_names_the_command():
    error = fk.MissingExtra("pandas", "pandas", "to_pandas")
    assert str(error) == 'to_pandas needs pandas: pip install "pandas>=2"'


def test_the_command_for_an_extra_has_all_that_it_needs_and_no_release_of_ours(monkeypatch):
    assert install_command("onnx") == 'pip install "onnx>=1.16" "onnxscript>=0.3" "onnxruntime>=1.18"'
    assert set(install_command("flower").strip('"').partition("flwr")[2].split(",")) == {">=1.41", "<1.42"}

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("onnx") == 'pip install ".[onnx]"'


def test_the_documents_and_messages_install_nothing_that_is_not_released():
    root = Path(__file__).parents[1]
    files = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("src/**/*.py"), *root.glob("examples/*")]
    assert not [str(file) for file in files if 'pip install "fedkeel' in file.read_text(encoding="utf-8")]


def test_the_nearest_name_is_suggested_and_without_one_all_are_listed():
    assert "Did you mean 'fedavg'?" in str(unknown("algorithm", "fedavgg", ["fedavg", "x"]))
    assert "Known: a, b." in str(unknown("task", "zzz", ["b", "a"]))


@pytest.mark.parametrize(
    ("value", "number", "count"),
    [(1, True, True), (0, True, False), (1.0, True, False), (True, False, False), (float("nan"), False, False),
     (float("inf"), False, False), ("1", False, False), (None, False, False)],
)  # fmt: skip
def test_numbers_and_counts_are_told_from_the_rest(value, number, count):
    assert is_number(value) is number
    assert is_count(value) is count


def test_an_error_survives_a_process_boundary():
    assert str(pickle.loads(pickle.dumps(fk.ClientError("Round 1")))) == "Round 1"
