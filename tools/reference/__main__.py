"""Write the pages."""

from tools.reference.pages import FOLDER, pages

for name, text in pages().items():
    (FOLDER / name).write_text(text)
