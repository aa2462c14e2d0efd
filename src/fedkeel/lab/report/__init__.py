"""What a run looks like.

in the terminal       progress, terminal, diagnosis, heatmap
as a page             runs (read) -> verdict, replay -> page (page.html, .css, .js)
while it goes on      ui (the same page, served)
"""
