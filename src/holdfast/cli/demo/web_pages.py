"""The web as the demo's agent finds it: a few pages that need no network."""

from __future__ import annotations

PAGES = {
    "https://example.org/causes": (
        "What causes the tides",
        "The tides are the rise and fall of the sea that the gravity of the Moon and the Sun brings about. The Moon "
        "pulls more strongly on the side of the Earth that faces it than on the Earth as a whole, and less strongly on "
        "the far side. These differences stretch the ocean into two bulges, and as the Earth turns beneath them most "
        "coasts see two high waters and two low waters in a lunar day of 24 hours and 50 minutes. The Sun does the "
        "same with a little less than half the strength. At new and full moon the two work together and make spring "
        "tides; at the quarters they work against each other and make neap tides.",
    ),
    "https://example.org/measuring": (
        "How the tides are measured",
        "For two centuries a float in a stilling well moved a pen on a drum of paper: the well let the tide in and "
        "kept the waves out. Today a radar gauge looks down at the water from a pier, a pressure sensor lies on the "
        "sea bed, and satellites measure the height of the open ocean to within a few centimetres. A year of "
        "hourly readings is enough to find the dozens of regular constituents, each with its period, from which the "
        "tides of the next year are predicted. The largest is M2, the principal lunar tide: its period is 12.42 hours.",
    ),
    "https://example.org/people": (
        "Who depends on the tides",
        "Harbour masters time the arrival of deep ships by high water. Pilots, fishers and rescue crews work by the "
        "tables. In the Bay of Fundy, where the range passes 16 metres, boats lie on the mud twice a day. Oysters and "
        "mussels are gathered between the tide marks, and wading birds follow the ebb. Towns on low coasts close their "
        "barriers when a storm surge meets a spring tide: the one on the Thames has been closed over 200 times.",
    ),
    "https://example.org/power": (
        "Power from the tides",
        "A tidal barrage lets the flood in and holds it back at ebb, so that the water drives turbines on its way out. "
        "The one across the Rance in Brittany has done so since 1966, with a capacity of 240 megawatts. Newer machines "
        "stand freely in fast currents like wind turbines under water. Both can be predicted for years ahead, which no "
        "other renewable source can; both are dear to build and change the life of an estuary.",
    ),
}
"""Title and text by address."""


def search(query: str) -> list[dict[str, str]]:
    """The pages that have most words of the query, best first; at most two."""
    words = {word for word in query.lower().split() if len(word) > 3}
    found = [(sum(word in f"{title} {text}".lower() for word in words), url) for url, (title, text) in PAGES.items()]
    best = sorted((one for one in found if one[0]), key=lambda one: -one[0])[:2]
    return [{"title": PAGES[url][0], "url": url} for _, url in best]
