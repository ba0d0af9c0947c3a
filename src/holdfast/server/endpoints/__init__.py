"""What can be asked for over HTTP: a module for each thing, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.server.api import Endpoint
from holdfast.server.app import Helper
from holdfast.server.endpoints import service

ENDPOINTS: Sequence[Endpoint] = [*service.api.endpoints]

HELPERS: Sequence[Helper] = []
