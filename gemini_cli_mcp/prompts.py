"""The prompt templates of `prompts/`, filled in one pass.

A value is never looked at again after it was put in, so `{{query}}` inside a user's
question stays what the user wrote. A missing template or an unknown name is a crash,
never a silent replacement.
"""

import re
from pathlib import Path

_HERE = Path(__file__).parent
# The installed copy first: site-packages may hold somebody else's `prompts`.
_FOLDERS = (_HERE / "_prompts", _HERE.parent / "prompts")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def template_path(name: str) -> Path:
    """Where the template `name` lies."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
    return folder / f"{name}.md"


def render(name: str, /, **values: str) -> str:
    """The template `name` with each `{{placeholder}}` replaced by its value."""
    template = template_path(name).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def inline_file(prompt: str, file: Path) -> str:
    """A correction's prompt with its file in place of `@name`, for whoever cannot read files."""
    return prompt.replace(f"@{file.name}", file.read_text(encoding="utf-8"), 1)
