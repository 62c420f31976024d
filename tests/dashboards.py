"""The dashboard and the alert rules that are shipped, and the series that they ask for."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files

import yaml

_FOLDER = files("redrive.integrations") / "dashboards"
DASHBOARD = json.loads((_FOLDER / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [rule for group in yaml.safe_load((_FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
EXPRESSIONS = {
    **{f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]},
    **{alert["alert"]: alert["expr"] for alert in ALERTS},
}


def series_in(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The series that an expression asks for, each with the values of labels that it wants."""
    for name, selector in re.findall(r"(redrive_\w+)(?:\{([^}]*)\})?", expression):
        yield name, dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
