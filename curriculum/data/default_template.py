"""The chat template of tokenizers that have none: plain text, the role on a line over each turn.

It needs no token that a tokenizer of a base model lacks: an assistant turn ends with EOS, and BOS
stands at the start where the tokenizer puts one there itself. It never rewrites a turn, so the
render of a conversation's beginning is a prefix of the render of the whole.
"""

from typing import TYPE_CHECKING

from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BOS = "{{ bos_token }}"
_TURNS = """\
{%- if tools -%}
    {{- 'Tools:\\n' -}}
    {%- for tool in tools -%}
        {{- tool | tojson + '\\n' -}}
    {%- endfor -%}
    {{- '\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- message.role | capitalize + ':\\n' -}}
    {%- if message.reasoning_content -%}
        {{- message.reasoning_content + '\\n\\n' -}}
    {%- endif -%}
    {{- message.content or '' -}}
    {%- for call in message.tool_calls or [] -%}
        {%- if message.content or not loop.first -%}
            {{- '\\n' -}}
        {%- endif -%}
        {{- 'Call: ' + (call.function or call) | tojson -}}
    {%- endfor -%}
    {%- if message.role == 'assistant' -%}
        {{- eos_token -}}
    {%- endif -%}
    {{- '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant:\\n' -}}
{%- endif -%}
"""


def default_template(tokenizer: "PreTrainedTokenizerFast") -> str:
    """The template, opened with BOS where the tokenizer opens texts with it.

    Raises `UserError` for a tokenizer without EOS: a model could not learn to end a turn.
    """
    if tokenizer.eos_token is None:
        raise UserError(
            "the tokenizer has neither a chat template nor an eos_token to end turns with; remedy: "
            "set eos_token in its tokenizer_config.json, or give a template as model.chat_template"
        )
    opening = tokenizer("a")["input_ids"][:1]
    opened = tokenizer.bos_token_id is not None and opening == [tokenizer.bos_token_id]
    return (_BOS if opened else "") + _TURNS
