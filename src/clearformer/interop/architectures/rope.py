"""The fields of config.json for rotary positions, in old and new files."""

from typing import Any

from clearformer.errors import shown
from clearformer.interop.mapping.fields import Fields
from clearformer.model.config import Position
from clearformer.model.positions import RoPE


def read_rope(
    fields: Fields, theta_field: str = "rope_theta", fraction_field: str | None = None, fraction: float = 1.0
) -> RoPE:
    """Read rotary positions from `rope_parameters` or `rope_scaling`, or else from separate fields.

    Raises:
        ConfigError: the angles are scaled, which clearformer's are not, or a value is not a valid number.
    """
    parameters = _parameters(fields)
    theta = (
        parameters.positive("rope_theta") if "rope_theta" in parameters else fields.positive(theta_field, 1e4)
    )
    if "partial_rotary_factor" in parameters:
        fraction = parameters.number("partial_rotary_factor")
        if fraction_field is None and fraction != 1:
            parameters.refuse(
                "partial_rotary_factor", f"this architecture rotates whole heads; got {fraction}"
            )
    elif fraction_field is not None:
        fraction = fields.number(fraction_field, fraction)
    if not 0 < fraction <= 1:
        fields.refuse(
            fraction_field or "partial_rotary_factor", f"expected a fraction of a head; got {fraction}"
        )
    return RoPE(theta=theta, fraction=fraction)


def _parameters(fields: Fields) -> Fields:
    for name in ("rope_scaling", "rope_parameters"):
        if not fields.get(name):  # transformers passes over an empty one too
            continue
        values = fields.values[name]
        if not isinstance(values, dict):
            fields.refuse(name, f"expected settings by name; got {shown(values)}")
        kind = values.get("rope_type", values.get("type", "default"))
        if kind != "default":
            fields.refuse(name, f"clearformer's rotary positions are not scaled; got the type {shown(kind)}")
        if unknown := values.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
            fields.refuse(name, f"clearformer's rotary positions have no {shown(min(unknown))}")
        return Fields(values, f"{fields.place}: {name}")
    return Fields({})


def write_rope(position: Position, default: RoPE) -> dict[str, Any]:
    """Return their fields for rotary positions, under new and old names; those of `default` for other positions."""
    rope = position if isinstance(position, RoPE) else default
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.theta},
        "rope_theta": rope.theta,
    }
