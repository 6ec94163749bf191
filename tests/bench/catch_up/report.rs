//! The figures of all rounds: as a table for people, as JSON for the repository.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::Data;
use crate::figures::{self, rounded, spread};
use crate::measure::Measured;

/// The peer: other systems' rounds are divided by its.
pub(crate) const KAFKA: &str = "kafka";

/// One measurement.
pub(crate) struct Row {
    pub(crate) system: &'static str,
    /// From 1; the first is a warm-up and counts nowhere.
    pub(crate) round: u32,
    pub(crate) measured: Measured,
}

impl Row {
    /// For a table.
    pub(crate) fn text(&self) -> String {
        let Measured { seconds, mb_per_s, leader_cpu, follower_cpu, follower_peak_mb } = self.measured;
        format!(
            "{:<17} {:>5} {seconds:>8.2} {mb_per_s:>7.0} {leader_cpu:>9.2} {follower_cpu:>11.2} {follower_peak_mb:>8.0}",
            self.system, self.round
        )
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "round": self.round,
            "warm_up": self.is_warm_up(),
            "seconds": rounded(self.measured.seconds),
            "mb_per_s": rounded(self.measured.mb_per_s),
            "leader_cpu_s_per_gb": rounded(self.measured.leader_cpu),
            "follower_cpu_s_per_gb": rounded(self.measured.follower_cpu),
            "follower_peak_mb": rounded(self.measured.follower_peak_mb),
        })
    }

    const fn is_warm_up(&self) -> bool {
        self.round == 1
    }
}

/// The heads of [`Row::text`].
pub(crate) const HEAD: &str =
    "system            round  seconds    MB/s  leader CPU  follower CPU  peak MB   (CPU s per GB)";

/// Everything, with minimum, median and maximum per system and of the ratios of the same round.
pub(crate) fn document(data: &Data, rows: &[Row]) -> Value {
    let counted: Vec<&Row> = rows.iter().filter(|row| !row.is_warm_up()).collect();
    let mut systems: BTreeMap<&str, Value> = BTreeMap::new();
    for system in counted.iter().map(|row| row.system) {
        let of = |figure: fn(&Measured) -> f64| {
            spread(counted.iter().filter(|row| row.system == system).map(|row| figure(&row.measured)))
        };
        let summary = json!({
            "mb_per_s": of(|m| m.mb_per_s),
            "leader_cpu_s_per_gb": of(|m| m.leader_cpu),
            "follower_cpu_s_per_gb": of(|m| m.follower_cpu),
            "mb_per_s_by_kafkas_of_the_same_round": spread(ratios(&counted, system)),
        });
        systems.insert(system, summary);
    }
    let data = json!({
        "records": data.records,
        "record_bytes": data.record_bytes,
        "batch_bytes": data.batch_bytes,
        "partitions": 1,
    });
    figures::document("catch_up", data, json!(systems), rows.iter().map(Row::json).collect())
}

fn ratios<'a>(rows: &'a [&Row], system: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of = |system: &'a str| rows.iter().filter(move |row| row.system == system);
    of(system).filter_map(move |row| {
        let peer = of(KAFKA).find(|peer| peer.round == row.round)?;
        Some(row.measured.mb_per_s / peer.measured.mb_per_s)
    })
}
