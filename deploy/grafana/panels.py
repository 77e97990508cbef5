"""What boards are built from: kinds of panels, states as words, a grid that fills itself."""

import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RUNBOOKS = "file:///opt/steadyhand/share/doc/runbooks"
# calm: normal is grey; amber wants a look, red wants somebody now
GREY, PALE, AMBER, ORANGE, RED = "#8f9aa3", "#c3c9ce", "#d9a441", "#d9762b", "#c4372f"
SOURCES = {
    "policy": GREY,
    "fallback": AMBER,
    "hold": ORANGE,
    "safe": RED,
    "hands_off": PALE,
}
MODES = {"off": PALE, "shadow": PALE, "advisory": PALE, "limited": GREY, "full": GREY}
GATES = {"trust": GREY, "probation": PALE, "fallback": AMBER, "latched": RED}
LINKS = {"up": GREY, "verifying": AMBER, "connecting": AMBER, "down": RED}
POLICIES = {
    "ready": GREY,
    "thread": GREY,
    "none": PALE,
    "restarting": AMBER,
    "crash_loop": RED,
    "closed": AMBER,
}
CONTROLS = {
    "off": PALE,
    "requested": AMBER,
    "preparing": PALE,
    "on": GREY,
    "partial": AMBER,
    "fallback": AMBER,
}
FOLLOWS = {
    "none": PALE,
    "policy": GREY,
    "fallback": AMBER,
    "hold": ORANGE,
    "safe": RED,
    "override": AMBER,
    "plant": AMBER,
}
# lines that mean nothing but themselves: muted, and none of the colours above
CALM = ("#5f7d99", "#85729b", "#8c7a66", "#5c8a8a", "#77818a")
UNITS = {
    "kW": "kwatt",
    "MW": "megwatt",
    "W": "watt",
    "kWh": "kwatth",
    "degC": "celsius",
    "K": "kelvin",
    "%": "percent",
    "h": "h",
    "s": "s",
    "bar": "pressurebar",
    "V": "volt",
    "A": "amp",
    "Hz": "hertz",
    "1/kWh": "suffix: /kWh",
}
"""Grafana's names of the units of signals; any other one stands in the legend alone."""
Steps = tuple[tuple[float | None, str], ...]
NORMAL: Steps = ((None, GREY),)


def one(name: str, **labels: str) -> str:
    """Series of the chosen instances."""
    extra = "".join(f',{key}="{value}"' for key, value in labels.items())
    return f'{name}{{instance=~"$instance"{extra}}}'


def with_unit(name: str, of: str, **labels: str) -> str:
    """A plant value with its unit as a label; `of`: observation or output."""
    label = "signal" if of == "observation" else of
    unit = f"group_left (unit) {one(f'steadyhand_{of}_info')}"
    chosen = "".join(f',{key}=~"{value}"' for key, value in labels.items())
    values = f'{name}{{instance=~"$instance"{chosen}}}'
    return f"{values} * on (instance, {label}) {unit}"


def coded(name: str, label: str, states: Iterable[str], by: str = "instance") -> str:
    """A state set as one number per instance, or whatever else has one: the place of the state that
    is on.
    """
    terms = (f"{i} * {one(name, **{label: state})}" for i, state in enumerate(states))
    return f"sum by ({by}) ({' or '.join(terms)})"


def meanings(states: dict[str, str]) -> list[Any]:
    """Numbers of `coded` back to words and colours."""
    return [
        ValueMap(
            options={
                str(i): ValueMappingResult(text=state.replace("_", " "), color=color, index=i)
                for i, (state, color) in enumerate(states.items())
            }
        )
    ]


class Board:
    """One dashboard under way: places panels from left to right, row by row."""

    def __init__(self, name: str, title: str, meaning: str, several: bool) -> None:
        self._ids = count(1)
        self._x = self._y = self._high = 0
        self.made = (
            dashboard.Dashboard(title)
            .uid(f"steadyhand-{name}")
            .description(meaning)
            .tags(["steadyhand"])
            .readonly()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .time("now-24h", "now")
            .refresh("30s")
            .timezone("browser")
            .with_variable(
                dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
            )
            .with_variable(self._instances(several))
            .with_variable(dashboard.ConstantVariable("runbooks").label("Runbooks").value(RUNBOOKS))
            .link(
                dashboard.DashboardLink("steadyhand")
                .type(DashboardLinkType.DASHBOARDS)
                .tags(["steadyhand"])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
            .annotation(
                dashboard.AnnotationQuery()
                .name("mode asked for")
                .datasource(SOURCE)
                .enable(True)
                .icon_color(GREY)
                .expr(
                    f"{one('steadyhand_mode')} == 1 unless "
                    f"{one('steadyhand_mode')} offset $__interval == 1"
                )
            )
        )

    @staticmethod
    def _instances(several: bool) -> dashboard.QueryVariable:
        made = (
            dashboard.QueryVariable("instance")
            .label("Loop")
            .datasource(SOURCE)
            .query("label_values(steadyhand_loop_info, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
        if several:
            chosen = VariableOption(selected=True, text=["All"], value=["$__all"])
            made = made.multi(True).include_all(True).current(chosen)
        return made

    def row(self, title: str) -> None:
        """A heading."""
        self._y += self._high
        place = GridPos(x=0, y=self._y, w=24, h=1)
        self.made.with_row(dashboard.Row(title).id(next(self._ids)).grid_pos(place))
        self._x, self._y, self._high = 0, self._y + 1, 0

    def add(
        self,
        panel: Any,  # noqa: ANN401  (builders share no type)
        title: str,
        meaning: str,
        queries: dict[str, str],
        unit: str,
        width: int,
        height: int = 6,
        *,
        steps: Steps = NORMAL,
        instant: bool = False,
        runbook: str = "",
        as_table: bool = False,
    ) -> None:
        """Place one panel.

        Args:
            panel: a builder.
            title: short.
            meaning: what is seen, when it is not normal, and what to do then.
            queries: expression by legend.
            unit: Grafana's name of the unit.
            width: of 24 columns.
            height: in rows of 30 pixels.
            steps: from which value on which colour.
            instant: only the newest value.
            runbook: name of the page that helps.
            as_table: labels as columns.
        """
        if self._x + width > 24:
            self._x, self._y, self._high = 0, self._y + self._high, 0
        place = GridPos(x=self._x, y=self._y, w=width, h=height)
        self._x, self._high = self._x + width, max(self._high, height)
        panel = (
            panel.id(next(self._ids))
            .title(title)
            .description(meaning)
            .datasource(SOURCE)
            .grid_pos(place)
            .unit(unit)
            .thresholds(
                dashboard.ThresholdsConfig()
                .mode(ThresholdsMode.ABSOLUTE)
                .steps([Threshold(value=value, color=color) for value, color in steps])
            )
        )
        if runbook:
            link = dashboard.DashboardLink("Runbook").type(DashboardLinkType.LINK)
            panel = panel.links([link.url(f"${{runbooks}}/{runbook}.md").target_blank(True)])
        for name, (legend, expression) in zip("ABCDEFGH", queries.items(), strict=False):
            query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(name)
            query = query.instant() if instant else query.range()
            panel = panel.with_target(query.format("table" if as_table else "time_series"))
        if isinstance(panel, timeseries.Panel) and len(queries) > 1:
            for name, colour in zip("ABCDEFGH", CALM[: len(queries)], strict=False):
                panel = panel.override_by_query(name, [_shades(colour)])
        self.made.with_panel(panel)


def number(text: bool = False) -> stat.Panel:
    """The newest value, large; `text`: the legend instead."""
    mode = BigValueTextMode.NAME if text else BigValueTextMode.VALUE_AND_NAME
    return (
        stat.Panel()
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(mode)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    )


def alone() -> stat.Panel:
    """One value without its legend."""
    return number().text_mode(BigValueTextMode.VALUE)


def _shades(colour: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "shades", "fixedColor": colour})


def trend(limit: bool = False, plant_values: bool = False) -> timeseries.Panel:
    """Lines over time, in shades of one muted colour per query.

    Args:
        limit: the threshold as a dashed line.
        plant_values: legends end in "[unit]"; the axis knows the unit from there.
    """
    made = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .line_interpolation(LineInterpolation.STEP_AFTER)
        .show_points(VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.SHADES).fixed_color(CALM[0]))
    )
    for unit, name in UNITS.items() if plant_values else ():
        known = DynamicConfigValue(id_val="unit", value=name)
        made = made.override_by_regexp(rf"/\[{re.escape(unit)}\]$/", [known])
    if limit:
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode("dashed"))
    return made


def timeline(states: dict[str, str]) -> statetimeline.Panel:
    """Which state when."""
    return (
        statetimeline.Panel()
        .mappings(meanings(states))
        .show_value(VisibilityMode.AUTO)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    )


def bars() -> bargauge.Panel:
    """One bar each."""
    return (
        bargauge.Panel()
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    )


def rows(hidden: Iterable[str], runbooks: bool = False) -> table.Panel:
    """Labels as columns, without those that say nothing here."""
    options = {"excludeByName": dict.fromkeys(hidden, True)}
    made = table.Panel().with_transformation(
        DataTransformerConfig(id_val="organize", options=options)
    )
    if runbooks:
        link = {"title": "Runbook", "url": "${runbooks}/${__value.raw}.md", "targetBlank": True}
        made = made.override_by_name(
            "alertname", [DynamicConfigValue(id_val="links", value=[link])]
        )
    return made
