//! How far the sending is, on a terminal.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

use crate::lines::Source;
use crate::load::Progress;

/// How often it is drawn.
const REFRESH: Duration = Duration::from_millis(100);

/// A progress bar on standard error. Nothing is drawn when that is no terminal, or when the lines are typed there.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    refresh: JoinHandle<()>,
}

impl Bar {
    /// Starts to show how much of `source` is acknowledged.
    pub(super) fn start(source: &Source, progress: Arc<Progress>) -> Self {
        let is_typed = matches!(source, Source::Stdin) && io::stdin().is_terminal();
        let bar = match source.length() {
            _ if is_typed => ProgressBar::hidden(),
            Some(length) => ProgressBar::new(length).with_style(style(
                "{bar:40} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}, {eta} left",
            )),
            None => ProgressBar::no_length()
                .with_style(style("{spinner} {decimal_bytes} {decimal_bytes_per_sec}, {elapsed}")),
        };
        let shown = bar.clone();
        let refresh = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(REFRESH);
            loop {
                ticks.tick().await;
                // Line feeds are no part of the records, and a key separator is none.
                shown.set_position(progress.bytes().saturating_add(progress.records()));
            }
        });
        Self { bar, refresh }
    }

    /// Takes it away.
    pub(super) fn finish(self) {
        self.refresh.abort();
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a legal constant")
}
