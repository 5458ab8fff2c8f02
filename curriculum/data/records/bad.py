"""What is said about a record that breaks a rule, and the type that says it."""

from typing import Any

from pydantic_core import PydanticCustomError

from curriculum.data.sources import Address

_SHOWN_CHARACTERS = 60


class BadRecord(Exception):
    """A record that breaks a rule of its task: where, which field, which value, which rule."""

    def __init__(self, address: Address, field: str, value: Any, rule: str) -> None:
        self.address, self.field, self.value, self.rule = address, field, value, rule
        shown = "" if value is None and field else _shortened(value)
        what = f"{field}={shown}" if field and shown else field or shown
        super().__init__(f"{address}: {what}: {rule}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions pickle by their message, which is not what this one is made from."""
        return BadRecord, (self.address, self.field, self.value, self.rule)

    @property
    def reason(self) -> str:
        """The complaint without place and value: what such records are counted under."""
        path = "".join(part for part in self.field if not part.isdigit()).replace("[]", "")
        return f"bad record: {path}: {self.rule}" if path else f"bad record: {self.rule}"


def broken(field: str, value: Any, rule: str) -> PydanticCustomError:
    """An error of a rule over several fields that still names the field."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "field": field, "value": value})


def bad_record(address: Address, detail: Any, given: Any) -> BadRecord:
    """The first complaint of the validator about `given`, a record as it was read."""
    places = [part for part in detail["loc"] if not str(part).startswith("(")]
    value, rule = detail["input"], detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "rule":
        field = detail["ctx"]["field"]
        value = detail["ctx"]["value"]
        places += [field] if field else []
    elif detail["type"] == "missing":
        null = _holds(given, places)
        value, rule = None, f"required, but {'null' if null else 'not given'}"
    return BadRecord(address, field_path(places), value, rule)


def field_path(places: list[Any]) -> str:
    """`messages[0].content` for `["messages", 0, "content"]`."""
    path = ""
    for part in places:
        shown = f"[{part}]" if isinstance(part, int) else str(part)
        path += shown if shown.startswith("[") else f".{shown}"
    return path.removeprefix(".")


def _holds(value: Any, places: list[Any]) -> bool:
    """True if there is a null at the place: nulls are taken out before a record is validated."""
    for part in places[:-1]:
        value = value[part]
    return places[-1] in value


def _shortened(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 3] + "..."
