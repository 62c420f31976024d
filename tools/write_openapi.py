"""Write docs/openapi.json: the admin API, as programs read it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from redrive.admin.access.settings import AccessSettings
from redrive.admin.api.application import make_api
from redrive.admin.context import AdminContext
from redrive.admin.target import BrokerTarget
from redrive.database.engine import Database

TARGET = Path(__file__).parent.parent / "docs" / "openapi.json"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        context = AdminContext(
            BrokerTarget(data=Path(folder)), Database.embedded(Path(folder)), access=AccessSettings()
        )
        document = make_api(context).openapi()
    document["info"]["version"] = "0"  # of Redrive: it changes more often than the API
    TARGET.write_text(json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    print(f"{TARGET}: {len(document['paths'])} paths")


if __name__ == "__main__":
    main()
