//! What the log says of a collector, line by line.

use std::io;
use std::sync::Mutex as StdMutex;

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<StdMutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `story` and answers the log's lines.
fn told(story: impl FnOnce(&Health)) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || story(&Health::new(Arc::default())));
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn an_outage_is_told_once_and_so_is_its_end() {
    let lines = told(|health| {
        for _ in 0..100 {
            health.on_failed(Signal::Spans, "refused");
            health.on_failed(Signal::Metrics, "refused");
        }
        health.on_dropped(7);
        health.on_taken(Signal::Metrics);
        health.on_taken(Signal::Spans);
        health.on_taken(Signal::Spans);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("refused"), "{lines:?}");
    assert!(lines[1].contains("INFO") && lines[1].contains("dropped_spans=7"), "{lines:?}");
}

#[test]
fn a_collector_that_comes_and_goes_is_warned_of_once_a_minute() {
    let lines = told(|health| {
        for _ in 0..10 {
            health.on_failed(Signal::Spans, "reset");
            health.on_taken(Signal::Spans);
        }
    });
    assert_eq!(lines.iter().filter(|line| line.contains("WARN")).count(), 1, "{lines:?}");
}

#[test]
fn drops_are_told_also_while_the_collector_takes_what_comes() {
    let lines = told(|health| {
        health.on_dropped(3);
        health.on_taken(Signal::Spans);
        health.on_taken(Signal::Spans);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("dropped_spans=3"), "{lines:?}");
}

#[test]
fn a_collector_that_refuses_one_signal_is_not_well_because_it_takes_the_other() {
    let lines = told(|health| {
        health.on_failed(Signal::Metrics, "too large");
        health.on_taken(Signal::Spans);
        health.on_taken(Signal::Spans);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("metrics") && lines[0].contains("too large"), "{lines:?}");
}
