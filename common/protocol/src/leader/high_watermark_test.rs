//! The value's own rules: never back, unknown stands still, news are coalesced.

use super::*;
use crate::test_values::{millis, ms, offset};

fn at_ten() -> HighWatermark {
    HighWatermark::new(offset(10), ms(20))
}

#[test]
fn it_moves_to_the_smallest_bound_and_never_back() {
    let mut high_watermark = at_ten();
    assert!(high_watermark.advance([Some(offset(15)), Some(offset(12))]));
    assert_eq!(high_watermark.value(), offset(12));
    assert!(!high_watermark.advance([Some(offset(15)), Some(offset(11))]));
    assert_eq!(high_watermark.value(), offset(12));
}

#[test]
fn an_unknown_bound_holds_it() {
    let mut high_watermark = at_ten();
    assert!(!high_watermark.advance([Some(offset(15)), None]));
    assert!(!high_watermark.advance([None, Some(offset(15)), Some(offset(20))]));
    assert_eq!(high_watermark.value(), offset(10));
}

#[test]
fn the_first_news_is_told_at_once_and_the_next_is_coalesced() {
    let mut high_watermark = at_ten();
    high_watermark.advance([Some(offset(11))]);
    assert!(high_watermark.propagate(millis(100)));
    assert_eq!(high_watermark.propagated(), offset(11));

    high_watermark.advance([Some(offset(12))]);
    assert!(!high_watermark.propagate(millis(101)));
    high_watermark.advance([Some(offset(13))]);
    assert!(!high_watermark.propagate(millis(119)));
    assert_eq!((high_watermark.propagated(), high_watermark.next_news()), (offset(11), Some(millis(120))));
    assert!(high_watermark.propagate(millis(120)));
    assert_eq!((high_watermark.propagated(), high_watermark.next_news()), (offset(13), None));
}

#[test]
fn nothing_new_is_never_told() {
    let mut high_watermark = at_ten();
    assert!(!high_watermark.propagate(millis(1000)));
    assert_eq!(high_watermark.next_news(), None);
}
