"""The scripts of the scripted models. With a real model, nothing of this is used."""

from __future__ import annotations

from pydantic_ai.exceptions import ModelHTTPError

from holdfast.testing import answer, call

BEES = [
    [call("web_search", query="bees find their way compass"), call("web_search", query="bees measure distance")],
    [call("read_page", name="sun"), call("read_page", name="landmarks")],
    call("read_page", name="dances"),
    answer(
        title="How bees find their way",
        summary=(
            "Bees combine a compass, a map and a measure: the sun and the polarised light around it, landmarks that "
            "they have learnt, and the ground that moves past their eyes. They tell direction and distance by dances."
        ),
        findings=[
            {"claim": "An inner clock corrects for the movement of the sun.", "source": "sun"},
            {"claim": "Distance is measured by how fast the ground moves past the eyes.", "source": "landmarks"},
            {"claim": "The waggle run tells direction by its angle and distance by its duration.", "source": "dances"},
        ],
    ),
]


def untidy_orders(number: int) -> list[str]:
    """Orders as they come from an old system."""
    cities = ["oslo", "LIMA ", " Turin", "kyoto", "oslo"]
    return [f" #{n:04} |{cities[n % 5]}| {n * 7 % 50 + 10}.{n % 100:02} €" for n in range(1, number + 1)]


ORDERS = [answer(headline="Oslo leads the week", best_city="Oslo")]

REFUSED = [ModelHTTPError(401, "claude-sonnet-4-5", {"error": {"message": "invalid x-api-key"}})]
REASON = ["Oslo"]
SYNTHESIZE = ["Yes: it is 14 °C in Oslo, so a light coat will do."]
