//! `<data>/meta.properties`: whose volume this is, in Kafka's format.
//!
//! Written once, when the volume is first used, and then only compared: so keys that this program does not know stay. A
//! volume of another node or cluster is refused before anything else of it is read.

use std::path::{Path, PathBuf};

use highwater_types::{ClusterId, NodeId};

use crate::disk_id::DiskIdFile;
use crate::storage::{Storage, StorageError};

/// The file's name in the data directory.
pub const META_PROPERTIES_FILE: &str = "meta.properties";

const BYTES_MAX: u64 = 64 << 10;
const VERSION: &str = "1";
/// Kafka's name for the node id in version 0.
const NODE_ID_KEYS: [&str; 2] = ["node.id", "broker.id"];

/// Whose volume it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The node.
    pub node_id: NodeId,
}

/// Why a volume is refused.
#[derive(Debug, thiserror::Error)]
pub enum MetaPropertiesError {
    /// The volume is another node's.
    #[error(
        "{} says that this volume belongs to node {found}, but this is node {expected}: check the node id \
         and which volume is mounted",
        path.display()
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: NodeId,
        /// Who asks.
        expected: NodeId,
    },
    /// The volume is another cluster's.
    #[error(
        "{} says that this volume belongs to cluster {found}, but this is cluster {expected}: check the \
         coordination store and which volume is mounted",
        path.display()
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: ClusterId,
        /// Who asks.
        expected: ClusterId,
    },
    /// The file cannot be understood.
    #[error(
        "{} cannot be used: {reason}; when the volume is this node's, remove the file and it is written again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl MetaProperties {
    /// Reads the file; `None` when there is none.
    ///
    /// # Errors
    /// [`MetaPropertiesError::Damaged`], or what the disk says.
    pub fn read<S: Storage>(storage: &S, data_dir: &Path) -> Result<Option<Self>, MetaPropertiesError> {
        let path = data_dir.join(META_PROPERTIES_FILE);
        let bytes = match storage.read_small(&path, BYTES_MAX) {
            Err(e) if e.is_not_found() => return Ok(None),
            read => read?,
        };
        parse(&bytes).map(Some).map_err(|reason| MetaPropertiesError::Damaged { path, reason })
    }

    /// Claims the volume for this node: writes the file, durably, when there is none; else compares. The disk's identity
    /// must be locked, so that the node's two programs do not write at once.
    ///
    /// # Errors
    /// When the volume is another node's or cluster's, when the file is damaged, or what the disk says.
    pub fn claim<S: Storage>(
        &self,
        storage: &S,
        data_dir: &Path,
        _locked: &DiskIdFile<S>,
    ) -> Result<(), MetaPropertiesError> {
        let path = data_dir.join(META_PROPERTIES_FILE);
        let Some(found) = Self::read(storage, data_dir)? else {
            let text =
                format!("version={VERSION}\ncluster.id={}\nnode.id={}\n", self.cluster_id, self.node_id);
            debug_assert_eq!(parse(text.as_bytes()).as_ref(), Ok(self), "what is written can be read");
            return Ok(storage.write_atomically(&path, text.as_bytes())?);
        };
        if found.cluster_id != self.cluster_id {
            let expected = self.cluster_id.clone();
            return Err(MetaPropertiesError::OtherCluster { path, found: found.cluster_id, expected });
        }
        found.check_node(data_dir, self.node_id)
    }

    /// Compares the node of the file that was read in `data_dir`: what can be known before the cluster is.
    ///
    /// # Errors
    /// [`MetaPropertiesError::OtherNode`].
    pub fn check_node(&self, data_dir: &Path, expected: NodeId) -> Result<(), MetaPropertiesError> {
        if self.node_id == expected {
            return Ok(());
        }
        let path = data_dir.join(META_PROPERTIES_FILE);
        Err(MetaPropertiesError::OtherNode { path, found: self.node_id, expected })
    }
}

fn parse(bytes: &[u8]) -> Result<MetaProperties, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
    let entries: Vec<_> =
        lines.filter_map(|line| line.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let value = |key: &str| entries.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    match value("version") {
        Some("0" | VERSION) => {}
        Some(_) => return Err(format!("its version is not 0 or {VERSION}")),
        None => return Err("version is missing".to_owned()),
    }
    let node_id = NODE_ID_KEYS.into_iter().find_map(value).ok_or("node.id is missing")?;
    Ok(MetaProperties {
        cluster_id: value("cluster.id").ok_or("cluster.id is missing")?.parse()?,
        node_id: node_id.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartitionLocks;
    use crate::storage::OsStorage;

    fn of(cluster: &str, node: i32) -> MetaProperties {
        MetaProperties { cluster_id: cluster.parse().unwrap(), node_id: NodeId::new(node).unwrap() }
    }

    fn claim(data_dir: &Path, claimant: &MetaProperties) -> Result<(), MetaPropertiesError> {
        let locks = PartitionLocks::open(data_dir).unwrap();
        let locked = DiskIdFile::try_lock(&OsStorage, data_dir, &locks).unwrap().unwrap();
        claimant.claim(&OsStorage, data_dir, &locked)
    }

    #[test]
    fn the_first_claim_writes_the_file_and_later_ones_leave_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meta.properties");
        let ours = of("MkU3OEVBNTcwNTJENDM2Qg", 3);
        assert_eq!(MetaProperties::read(&OsStorage, dir.path()).unwrap(), None);
        claim(dir.path(), &ours).unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(written, "version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=3\n");

        let with_more = format!("# by hand\n{written}directory.id=abc\n");
        std::fs::write(&path, &with_more).unwrap();
        claim(dir.path(), &ours).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), with_more, "unknown keys stay");
        assert_eq!(MetaProperties::read(&OsStorage, dir.path()).unwrap(), Some(ours));
    }

    #[test]
    fn another_nodes_and_another_clusters_volume_is_refused_by_both_names() {
        let dir = tempfile::tempdir().unwrap();
        claim(dir.path(), &of("one", 3)).unwrap();
        let node = claim(dir.path(), &of("one", 4)).unwrap_err().to_string();
        assert!(node.contains("node 3") && node.contains("node 4"), "{node}");
        let cluster = claim(dir.path(), &of("two", 3)).unwrap_err().to_string();
        assert!(cluster.contains("cluster one") && cluster.contains("cluster two"), "{cluster}");
    }

    #[test]
    fn kafkas_older_file_is_read_and_damage_is_refused() {
        assert_eq!(parse(b"#x\nversion=0\nbroker.id=7\ncluster.id=one\n"), Ok(of("one", 7)));
        for bytes in [
            &b""[..],
            &[0; 16],
            b"\xff",
            b"version=9\nnode.id=1\ncluster.id=a\n",
            b"version=1\nnode.id=1\n",
            b"version=1\nnode.id=-1\ncluster.id=a\n",
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("meta.properties"), "").unwrap();
        assert!(matches!(claim(dir.path(), &of("one", 3)), Err(MetaPropertiesError::Damaged { .. })));
    }
}
