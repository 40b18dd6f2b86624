"""The prompt templates in `prompts/`, rendered in a single pass.

Substituted values are not scanned again, so `{{query}}` inside a user's question is kept
literally. A missing template or an unknown placeholder raises an exception; nothing is silently
replaced.
"""

import re
import secrets
from datetime import datetime
from pathlib import Path

_PACKAGE_DIR = Path(__file__).parent
# The installed copy first: site-packages may contain another package's `prompts`.
_TEMPLATE_DIRS = (_PACKAGE_DIR / "_prompts", _PACKAGE_DIR.parent / "prompts")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def template_path(name: str) -> Path:
    folder = next((path for path in _TEMPLATE_DIRS if path.is_dir()), _TEMPLATE_DIRS[0])
    return folder / f"{name}.md"


def render(name: str, /, **values: str) -> str:
    """Return the template `name` with each `{{placeholder}}` replaced by its value."""
    template = template_path(name).read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def render_question(name: str, question: str, /, **values: str) -> str:
    """Fill a template with the caller's question, as data: between unguessable delimiters."""
    today = datetime.now().astimezone().date().isoformat()
    return render(name, query=question, date=today, mark=secrets.token_hex(4), **values)


def inline_file(prompt: str, file: Path) -> str:
    """Replace `@name` with the content of `file`, for providers that cannot read files."""
    return prompt.replace(f"@{file.name}", file.read_text(encoding="utf-8"), 1)
