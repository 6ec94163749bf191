//! Series of a gauge that its program tells no more. Whoever keeps a gauge's last value would show it for minutes, a replica
//! with the cause of a lag that is over for instance, so such a series is told as 0 before it ends.
//!
//! What holds: the 0 is told until an export with it went through; what is kept is bounded by the limit of series.

use std::collections::BTreeMap;

use opentelemetry::KeyValue;

/// The series of one gauge.
#[derive(Debug, Default)]
pub(crate) struct EndedSeries {
    told: BTreeMap<Vec<(String, String)>, Told>,
    failed_exports: u64,
}

#[derive(Debug)]
struct Told {
    about: Vec<KeyValue>,
    /// Told as 0.
    has_ended: bool,
}

impl EndedSeries {
    /// Adds a 0 for each series that was told and is not among `values`, which are at most `limit` then.
    /// `failed_exports` so far: when it has not grown, what was told last has arrived.
    pub(crate) fn add_to(
        &mut self,
        values: &mut Vec<(f64, Vec<KeyValue>)>,
        failed_exports: u64,
        limit: usize,
    ) {
        let has_arrived = std::mem::replace(&mut self.failed_exports, failed_exports) == failed_exports;
        let mut before = std::mem::take(&mut self.told);
        before.retain(|_, told| !(told.has_ended && has_arrived));
        for (_, about) in values.iter() {
            let key = key(about);
            before.remove(&key);
            self.told.insert(key, Told { about: about.clone(), has_ended: false });
        }
        for (key, told) in before.into_iter().take(limit.saturating_sub(values.len())) {
            values.push((0.0, told.about.clone()));
            self.told.insert(key, Told { has_ended: true, ..told });
        }
        debug_assert!(self.told.len() <= values.len(), "nothing is kept that is not told");
    }
}

fn key(about: &[KeyValue]) -> Vec<(String, String)> {
    about.iter().map(|about| (about.key.to_string(), about.value.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Values = Vec<(f64, Vec<KeyValue>)>;

    fn of(value: f64, cause: &'static str) -> (f64, Vec<KeyValue>) {
        (value, vec![KeyValue::new("cause", cause)])
    }

    fn look(ended: &mut EndedSeries, mut values: Values, failed_exports: u64) -> Values {
        ended.add_to(&mut values, failed_exports, 3);
        values
    }

    #[test]
    fn a_series_that_is_told_no_more_is_told_as_0_once() {
        let mut ended = EndedSeries::default();
        assert_eq!(look(&mut ended, vec![of(1.0, "a")], 0), [of(1.0, "a")]);
        assert_eq!(look(&mut ended, vec![of(1.0, "b")], 0), [of(1.0, "b"), of(0.0, "a")]);
        assert_eq!(look(&mut ended, vec![of(1.0, "b")], 0), [of(1.0, "b")]);
        assert_eq!(look(&mut ended, Vec::new(), 0), [of(0.0, "b")]);
        assert_eq!(look(&mut ended, vec![of(1.0, "b")], 0), [of(1.0, "b")], "it is back");
    }

    #[test]
    fn the_0_is_told_again_until_an_export_went_through() {
        let mut ended = EndedSeries::default();
        look(&mut ended, vec![of(1.0, "a")], 0);
        assert_eq!(look(&mut ended, Vec::new(), 0), [of(0.0, "a")]);
        assert_eq!(look(&mut ended, Vec::new(), 1), [of(0.0, "a")], "that one failed");
        assert_eq!(look(&mut ended, Vec::new(), 2), [of(0.0, "a")]);
        assert_eq!(look(&mut ended, Vec::new(), 2), []);
    }

    #[test]
    fn no_more_series_are_told_than_the_limit() {
        let mut ended = EndedSeries::default();
        look(&mut ended, vec![of(1.0, "a"), of(1.0, "b"), of(1.0, "c")], 0);
        assert_eq!(look(&mut ended, vec![of(1.0, "d"), of(1.0, "e")], 0).len(), 3);
        assert_eq!(ended.told.len(), 3);
    }
}
