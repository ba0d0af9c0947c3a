"""``python -m fastapi_app``"""

from __future__ import annotations

import uvicorn
from offline import make_parser

from . import __doc__ as what_it_does
from .app import app


def main() -> None:
    parser = make_parser(what_it_does)
    parser.add_argument("--port", type=int, default=8000)
    uvicorn.run(app, port=parser.parse_args().port)


if __name__ == "__main__":
    main()
