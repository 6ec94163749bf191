//! Keeps the view up with what others write: reads what changed, then watches from there; whenever the watch breaks, for
//! whatever reason, both begin anew.
//!
//! What must hold: nothing that changed between two watches is missed. That needs no history of etcd's: what changed after
//! a revision is asked of the records themselves, and no record ever goes away without a tombstone. So a compaction during
//! an outage costs nothing.
//!
//! A watch that is silent may be idle, or cut off with its member. So it is asked every [`ASK_EVERY`] how far it is, and
//! must be as far as other answers were.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Store;
use crate::{CoordinationError, ViewChanges};

/// How often a watch is asked how far it is.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How often it may not answer in time before it is given up. Not once: this program itself may have paused.
const SILENCES_MAX: u32 = 2;

/// The pause after a watch broke, doubled up to the longest while etcd is out of reach.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The most causes that are told of one outage: a few for each member.
const TOLD_MAX: usize = 16;

/// Runs until it is aborted.
pub(super) async fn keep_up(store: Arc<Store>) {
    let mut state = Reach { told: BTreeSet::new(), pause: PAUSE_MIN };
    loop {
        match follow(&store, &mut state).await {
            Ok(never) => match never {},
            Err(error) => state.lost(&error),
        }
        sleep(state.pause).await;
        state.pause = (state.pause * 2).min(PAUSE_MAX);
    }
}

/// What was told of an outage: each cause once, since an etcd that was away may come back as another one.
struct Reach {
    told: BTreeSet<String>,
    pause: Duration,
}

impl Reach {
    fn lost(&mut self, error: &CoordinationError) {
        // A watch that broke and begins anew at once is no outage.
        let is_outage = self.pause > PAUSE_MIN && self.told.len() < TOLD_MAX;
        if is_outage && self.told.insert(error.to_string()) {
            tracing::warn!(%error, "the coordination store is out of reach");
        } else {
            tracing::debug!(%error, "the watch of the coordination store broke");
        }
    }

    fn found(&mut self) {
        self.pause = PAUSE_MIN;
        if !std::mem::take(&mut self.told).is_empty() {
            tracing::info!("the coordination store is within reach again");
        }
    }
}

async fn follow(store: &Store, reach: &mut Reach) -> Result<Infallible, CoordinationError> {
    let revision = store.catch_up().await?;
    let borrowed = store.connection.client().await?;
    let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1).with_fragment();
    let mut client = borrowed.client.watch_client();
    let opening = client.watch(store.keys.records(), Some(options));
    let watched = match timeout(store.connection.call_timeout(), opening).await {
        Err(_) => Err("the watch did not begin in time".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(stream)) => {
            reach.found();
            Err(watch(store, stream).await)
        }
    };
    store.connection.leave(&borrowed).await;
    watched.map_err(|text| CoordinationError::Unavailable(format!("etcd at {}: {text}", borrowed.endpoint)))
}

/// Merges what the watch tells, until it breaks; says why it did.
async fn watch(store: &Store, mut stream: WatchStream) -> String {
    let mut ask = interval(ASK_EVERY);
    ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut owed: Option<Owed> = None;
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) if message.canceled() => {
                    return format!(
                        "the watch was ended: {} (compacted up to {})", message.cancel_reason(), message.compact_revision()
                    );
                }
                Ok(Some(message)) => {
                    let revision = message.header().map_or(0, |header| header.revision());
                    owed = owed.filter(|owed| revision < owed.revision);
                    take(store, &message);
                }
                Ok(None) => return "the watch ended".to_owned(),
                Err(error) => return error.to_string(),
            },
            _ = ask.tick() => {
                let owed = owed.get_or_insert_with(|| Owed { revision: store.connection.seen(), silences: 0 });
                owed.silences += 1;
                if owed.silences > SILENCES_MAX {
                    return format!("the watch is silent, or behind revision {}", owed.revision);
                }
                if let Err(error) = stream.request_progress().await {
                    return error.to_string();
                }
            }
        }
    }
}

/// How far the watch must say that it is, and how often it was asked.
struct Owed {
    revision: i64,
    silences: u32,
}

fn take(store: &Store, message: &WatchResponse) {
    let mut changes = ViewChanges::default();
    let mut last = 0;
    for event in message.events() {
        let Some(entry) = event.kv() else { continue };
        last = last.max(entry.mod_revision());
        // Partitions are deleted with their topic, and its tombstone says so.
        if event.event_type() == EventType::Put
            && let Err(error) = store.keys.collect(entry, &mut changes)
        {
            tracing::error!(%error, "a record of the coordination store is passed over");
        }
    }
    if last > 0 {
        store.show(changes, last);
        // The rest of this revision may be in the next message.
        store.complete_up_to(last - 1);
    }
}
