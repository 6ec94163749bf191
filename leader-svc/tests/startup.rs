//! What a program looks at before it is seen: its data directory first, then its port.
#![allow(clippy::unwrap_used, reason = "a test that fails here shows where")]

mod support;

use std::sync::Arc;

use highwater_coordination::{Coordination as _, FileCoordination, FileOptions};
use highwater_types::NodeRecord;
use leader_svc::{BuildError, build};
use support::{config, start};
use tokio::net::TcpListener;

#[tokio::test]
async fn the_data_directory_is_looked_at_before_the_port_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    start(dir.path()).await.stop().await;
    std::fs::rename(dir.path().join("data-1"), dir.path().join("data-2")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let error = build(config(dir.path(), 2, &[("listen", &listen)])).await.unwrap_err();
    assert!(matches!(&error, BuildError::Volume(_)), "{error}");
    assert!(error.to_string().contains("belongs to node 1"), "{error}");
}

#[tokio::test]
async fn a_node_that_cannot_have_its_port_is_not_in_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let error = build(config(dir.path(), 1, &[("listen", &listen)])).await.unwrap_err();
    assert!(matches!(&error, BuildError::Serve(_)), "{error}");
    let store = FileCoordination::open(&dir.path().join("store"), FileOptions::default()).await.unwrap();
    let view = Arc::clone(&store.view().borrow());
    assert_eq!(view.nodes().collect::<Vec<_>>(), Vec::<&Arc<NodeRecord>>::new());
}
