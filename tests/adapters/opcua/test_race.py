"""The comparison that the benchmark runs, on a small scale: it must be fair and right."""

from steadyhand.adapters.opcua.race import read_race


def test_both_ways_give_the_same_values_and_ours_reads_columns(plant) -> None:
    race = read_race(plant.endpoint, ["level", "flow"], plant.index, calls=40)
    assert race.equal
    assert race.tags == 2
    assert race.columns_share > 0.9
    assert race.ours_us > 0.0
    assert abs(race.ratio - race.ours_us / race.library_us) < 1e-9
