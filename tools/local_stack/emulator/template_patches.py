"""What templates become before they are deployed: as AWS makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTS: Final = ("List<", "CommaDelimitedList")


def put_in_parameters() -> None:
    """AWS: LanguageExtensions puts parameters' values into a template, before SAM looks at it.

    The emulator leaves the references, so that SAM, which publishes a new version of a function for
    whatever changed in its properties, takes a parameter of another value for no change. And its
    conditions take neither a list joined nor a part of a text.
    """
    extensions = emulator_module("ministack.services.cloudformation.language_extensions")
    original = extensions.apply

    def apply(template: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        processed: dict[str, Any] = original(template, parameters)
        plain = {
            name: value
            for name, value in parameters.items()
            if not any(word in processed["Parameters"][name]["Type"] for word in _LISTS)
        }
        conditions = with_lists_joined(processed.get("Conditions", {}), parameters)
        resources = with_values(processed["Resources"], plain)
        return processed | {"Conditions": conditions, "Resources": resources}

    extensions.apply = apply


def with_values(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of a template with values in place of references to their names."""
    if isinstance(node, list):
        return [with_values(part, values) for part in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"Ref"} and node["Ref"] in values:
        return values[node["Ref"]]
    return {name: with_values(part, values) for name, part in node.items()}


def with_lists_joined(node: Any, values: Mapping[str, str]) -> Any:
    """Return conditions with texts in place of joins and parts of parameters."""
    if isinstance(node, list):
        return [with_lists_joined(part, values) for part in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"Fn::Join": [str(between), {"Ref": name}]} if name in values:
            return between.join(str(values[name]).split(","))
        case {"Fn::Join": [str(between), {"Fn::Split": [str(at), {"Ref": name}]}]}:
            return between.join(str(values[name]).split(at))
        case {"Fn::Select": [int(place), {"Fn::Split": [str(at), {"Ref": name}]}]}:
            return str(values[name]).split(at)[place]
    return {name: with_lists_joined(part, values) for name, part in node.items()}
