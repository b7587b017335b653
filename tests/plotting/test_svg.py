"""Charts as SVG: scales, ticks, lines with a legend."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from outplay.plotting.svg import Scale, curve_chart, scale_of, tick_text


def test_axes() -> None:
    assert [text for _, text in Scale(0, 10).ticks(5)] == ["0", "2", "4", "6", "8", "10"]
    assert [text for _, text in Scale(1e-5, 1e-1, is_log=True).ticks(6)] == ["1e-5", "1e-4", "0.001", "0.01", "0.1"]
    assert [text for _, text in Scale(2e-3, 8e-3, is_log=True).ticks(6)] == ["0.002", "0.005"]
    assert [text for _, text in Scale(0, 3, is_whole=True).ticks(8)] == ["0", "1", "2", "3"]
    assert [text for _, text in Scale(5, 5).ticks()] == ["5"]
    assert [tick_text(value) for value in (0, 25_000, -0.5, 3e6, 1e-4, 0.25)] == [
        "0",
        "25k",
        "-0.5",
        "3M",
        "1e-4",
        "0.25",
    ]
    cut = scale_of([*range(20), 1e9], "min")
    assert cut.is_cut
    assert cut.high < 100
    assert scale_of([*range(20), 1e9], "max").high > 1e9  # the best value is never cut


def test_categories_are_found_by_their_text() -> None:
    scale = Scale(0, 1, categories=("0.1", "0.2"), text=lambda value: f"{value:.1f}")
    assert [scale(0.1), scale(0.2)] == [0.25, 0.75]
    assert Scale(0, 1, categories=("a",))("a") == 0.5


def test_a_chart_of_curves_has_a_legend_only_for_several() -> None:
    points = [(0.0, 1.0), (10.0, 2.0)]
    both = curve_chart({"training": points, "evaluation": [(5.0, 3.0)]}, "steps", "return", "Returns <of> a run")
    assert ElementTree.fromstring(both).get("aria-label") == "Returns <of> a run"
    assert both.count('class="legend"') == 2
    assert 'class="dot evaluation"' in both  # a single value
    one = curve_chart({"training": points, "evaluation": []}, "steps", "return", "Returns")
    assert 'class="legend"' not in one
    assert curve_chart({"training": []}, "steps", "return", "Returns") == ""
