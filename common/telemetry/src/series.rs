//! How many series a metric has, at most. Beyond its limit the SDK puts all values into one series; of a gauge only the last
//! one would be left.
//!
//! What holds: a gauge with more series by partition than the setting allows is told for all partitions together, by
//! follower and cause.

use std::collections::BTreeMap;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::Stream;

use crate::names::attribute;

/// Series that are there without partitions: followers times causes, methods times statuses. The SDK's own limit.
const WITHOUT_PARTITIONS: usize = 2_000;

/// What several partitions have together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fold {
    Sum,
    Largest,
    Smallest,
}

impl Fold {
    fn of(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Sum => one + other,
            Self::Largest => one.max(other),
            Self::Smallest => one.min(other),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    /// By partition, of one metric.
    pub(crate) max: u32,
}

impl Series {
    fn max(self) -> usize {
        usize::try_from(self.max).unwrap_or(usize::MAX)
    }

    /// What the SDK is told of every instrument. Histograms by partition have their bound there: what is beyond it is in one
    /// series, which is right for them.
    pub(crate) fn stream(self) -> Option<Stream> {
        Stream::builder().with_cardinality_limit(self.limit()).build().ok()
    }

    /// How many series an instrument may have in all.
    pub(crate) fn limit(self) -> usize {
        self.max().max(WITHOUT_PARTITIONS)
    }

    /// Takes the partitions out of a gauge's values when they are too many.
    pub(crate) fn bound(self, values: &mut Vec<(f64, Vec<KeyValue>)>, fold: Fold) {
        if values.len() <= self.max() {
            return;
        }
        let is_kept =
            |about: &KeyValue| ![attribute::TOPIC, attribute::PARTITION].contains(&about.key.as_str());
        let mut together = BTreeMap::<Vec<(String, String)>, (f64, Vec<KeyValue>)>::new();
        for (value, about) in values.drain(..) {
            let kept: Vec<KeyValue> = about.into_iter().filter(is_kept).collect();
            let key = kept.iter().map(|about| (about.key.to_string(), about.value.to_string())).collect();
            let entry = together.entry(key);
            entry.and_modify(|(all, _)| *all = fold.of(*all, value)).or_insert((value, kept));
        }
        values.extend(together.into_values());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_partitions(count: i64) -> Vec<(f64, Vec<KeyValue>)> {
        let of = |number: i64| {
            let about = vec![
                KeyValue::new(attribute::TOPIC, "orders"),
                KeyValue::new(attribute::PARTITION, number.to_string()),
                KeyValue::new(attribute::FOLLOWER_ID, 1 + number % 2),
            ];
            (f64::from(u32::try_from(number).unwrap()), about)
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn partitions_beyond_the_bound_are_told_together_by_follower() {
        for (fold, of_one, of_other) in
            [(Fold::Sum, 6.0, 4.0), (Fold::Largest, 4.0, 3.0), (Fold::Smallest, 0.0, 1.0)]
        {
            let mut values = of_partitions(5);
            Series { max: 4 }.bound(&mut values, fold);
            let follower = |id: i64| vec![KeyValue::new(attribute::FOLLOWER_ID, id)];
            assert_eq!(values, [(of_one, follower(1)), (of_other, follower(2))], "{fold:?}");
        }
    }

    #[test]
    fn partitions_within_the_bound_are_told_each() {
        let mut values = of_partitions(5);
        Series { max: 5 }.bound(&mut values, Fold::Sum);
        assert_eq!(values, of_partitions(5));
    }
}
