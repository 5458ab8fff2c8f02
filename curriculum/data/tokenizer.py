"""The tokenizer of a run: loaded from a directory, with the chat template that the run uses.

`transformers.PreTrainedTokenizerFast` is loaded directly: `AutoTokenizer` would import torch.
"""

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateSyntaxError

from curriculum.config import Model
from curriculum.data.default_template import default_template
from curriculum.data.records import Chat, is_chat
from curriculum.data.render import closing, renders, tokenize
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_log = logging.getLogger(__name__)

_FILE_PREFIXES = ("tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges")


def load_tokenizer(model: Model) -> "PreTrainedTokenizerFast":
    """The fast tokenizer in `model.tokenizer`, or in `model.path` where that is null.

    `model.chat_template`, a Jinja text or a path that ends in `.jinja`, takes the place of the
    tokenizer's own template. A tokenizer that has neither gets `default_template`, and one line of
    the log says so; it is saved with the model like any other. Raises `UserError`.
    """
    directory = _directory(model)
    from transformers import PreTrainedTokenizerFast  # imported late: a dry run needs none

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
    except Exception as error:  # the library raises bare Exception for a broken tokenizer.json
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{directory}: the tokenizer cannot be loaded: {reason}") from None
    template = template_override(model)
    if template is not None:
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        tokenizer.chat_template = default_template(tokenizer)
        _log.info("%s: no chat template; conversations use the default one", directory)
    _check_syntax(tokenizer)
    return tokenizer


def _check_syntax(tokenizer: "PreTrainedTokenizerFast") -> None:
    try:  # that this exchange does not suit the template says nothing: records may
        renders([Chat([{"role": "user", "content": "a"}])], tokenizer)
    except TemplateSyntaxError as error:
        raise UserError(
            f"model.chat_template: not valid Jinja, line {error.lineno}: {error.message}"
        ) from None


def _directory(model: Model) -> Path:
    name = model.tokenizer or model.path
    if name is None:
        raise UserError(
            "model.tokenizer and model.path are both null: no tokenizer to load; give the "
            "directory of one as model.tokenizer"
        )
    directory = Path(name).expanduser()
    if not (directory / "tokenizer.json").is_file():
        option = "model.tokenizer" if model.tokenizer else "model.path"
        raise UserError(
            f"{option}={name}: no tokenizer.json there; give the directory of a saved fast "
            "tokenizer as model.tokenizer"
        )
    return directory


def tokenizer_files(model: Model) -> list[Path] | None:
    """Files that decide what a tokenizer does, the template's included; None if there are none."""
    name = model.tokenizer or model.path
    directory = Path(name).expanduser() if name else None
    if directory is None or not directory.is_dir():
        return None
    files = [file for file in directory.iterdir() if file.name.startswith(_FILE_PREFIXES)]
    if model.chat_template and _is_file_name(model.chat_template):
        files.append(Path(model.chat_template).expanduser())
    return sorted(file for file in files if file.is_file())


def template_override(model: Model) -> str | None:
    """The text of `model.chat_template`, read from its file if it names one."""
    template = model.chat_template
    if template is None:
        return None
    if _is_file_name(template):
        try:
            template = Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise UserError(f"model.chat_template={template}: cannot be read: {reason}") from None
    return template


def _is_file_name(template: str) -> bool:
    return template.endswith(".jinja") and "\n" not in template


def require_chat_template(phase: str, task: str, tokenizer: "PreTrainedTokenizerFast") -> None:
    """`UserError` if the task needs a chat template and the tokenizer, which did not come from
    `load_tokenizer`, has none."""
    if is_chat(task) and not tokenizer.chat_template:
        raise UserError(
            f"phase {phase}: task={task} needs a chat template, but the tokenizer has none; give "
            "one as model.chat_template (a Jinja text or a .jinja file)"
        )


def tokenizer_digest(tokenizer: "PreTrainedTokenizerFast") -> str:
    """SHA-256 of what decides token ids: model, vocabulary, special tokens. Not the template."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    # Both change with every call that pads or cuts, and neither is used here.
    state.pop("padding", None)
    state.pop("truncation", None)
    special = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
    text = json.dumps([state, special], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def end_of_turn_ids(tokenizer: "PreTrainedTokenizerFast") -> set[int]:
    """Token ids at which generation stops: the terminator that the template writes behind an
    assistant turn, if it is one token, and EOS."""
    stops = set() if tokenizer.eos_token_id is None else {int(tokenizer.eos_token_id)}
    if not tokenizer.chat_template:
        return stops
    end = closing(tokenizer)
    if not end:
        return stops
    (terminator,) = tokenize([end if end.isspace() else end.rstrip()], tokenizer)
    return stops | set(terminator) if len(terminator) == 1 else stops
