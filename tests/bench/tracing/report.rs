//! The figures of all rounds: as a table for people, as JSON for the repository.

use serde_json::{Value, json};

use crate::Load;
use crate::figures::{self, rounded, spread};
use crate::pair::Measured;

/// The pair without a collector, by whose figures those of the others are divided.
pub(crate) const OFF: &str = "off";
/// The pair with a collector and default sampling.
pub(crate) const ON: &str = "on";
/// Another pair without a collector.
pub(crate) const OFF_TOO: &str = "off-too";

/// The heads of [`Row::text`].
pub(crate) const HEAD: &str =
    "pair      round  fetches/s  both us by fetch  leader us by fetch  agent us by append";

/// One measurement.
pub(crate) struct Row {
    pub(crate) pair: &'static str,
    /// From 1; the first is a warm-up and counts nowhere.
    pub(crate) round: u32,
    pub(crate) measured: Measured,
}

impl Row {
    /// For a table.
    pub(crate) fn text(&self) -> String {
        let Measured { fetches_per_s, both_us, leader_us, agent_us } = self.measured;
        let head = format!("{:<9} {:>5} {fetches_per_s:>10.0}", self.pair, self.round);
        format!("{head} {both_us:>17.2} {leader_us:>19.2} {agent_us:>19.2}")
    }

    fn json(&self) -> Value {
        json!({
            "pair": self.pair,
            "round": self.round,
            "warm_up": self.is_warm_up(),
            "fetches_per_s": rounded(self.measured.fetches_per_s),
            "cpu_us_per_fetch": rounded(self.measured.both_us),
            "leader_cpu_us_per_fetch": rounded(self.measured.leader_us),
            "agent_cpu_us_per_append": rounded(self.measured.agent_us),
        })
    }

    const fn is_warm_up(&self) -> bool {
        self.round == 1
    }
}

/// Everything, with minimum, median and maximum per pair, and how many per cent more than the first pair without a collector
/// the others used in the same round.
pub(crate) fn document(load: Load, rows: &[Row]) -> Value {
    let counted: Vec<&Row> = rows.iter().filter(|row| !row.is_warm_up()).collect();
    let mut summary = serde_json::Map::new();
    for pair in [OFF, ON, OFF_TOO] {
        let of = |figure: fn(&Measured) -> f64| {
            spread(counted.iter().filter(|row| row.pair == pair).map(|row| figure(&row.measured)))
        };
        let more = |figure: fn(&Measured) -> f64| spread(more_than_off(&counted, pair, figure));
        let figures = json!({
            "fetches_per_s": of(|m| m.fetches_per_s),
            "cpu_us_per_fetch": of(|m| m.both_us),
            "leader_cpu_us_per_fetch": of(|m| m.leader_us),
            "agent_cpu_us_per_append": of(|m| m.agent_us),
            "cpu_more_than_off_percent": more(|m| m.both_us),
            "leader_cpu_more_than_off_percent": more(|m| m.leader_us),
            "agent_cpu_more_than_off_percent": more(|m| m.agent_us),
        });
        summary.insert(pair.to_owned(), figures);
    }
    let data = json!({
        "wanted_fetches_per_s": load.rate,
        "connections": load.connections,
        "seconds_under_load": load.time.as_secs(),
        "sampling": "default",
    });
    figures::document("tracing", data, Value::Object(summary), rows.iter().map(Row::json).collect())
}

fn more_than_off<'a>(
    rows: &'a [&Row],
    pair: &'a str,
    figure: fn(&Measured) -> f64,
) -> impl Iterator<Item = f64> + 'a {
    let of = |pair: &'a str| rows.iter().filter(move |row| row.pair == pair);
    of(pair).filter_map(move |row| {
        let off = of(OFF).find(|off| off.round == row.round)?;
        Some((figure(&row.measured) / figure(&off.measured) - 1.0) * 100.0)
    })
}
