//! Kubernetes, from its own programs: an API server over etcd that takes manifests ([`ControlPlane`]), a node that runs
//! their pods ([`Node`]), and the schemas that manifests are held against.
//!
//! What must hold: nothing of the machine is changed, and everything dies with the test.

mod control_plane;
pub mod images;
mod kubectl;
mod machine;
mod manifests;
mod node;
mod schemas;

pub use control_plane::ControlPlane;
pub use kubectl::{Kubectl, Said};
pub use machine::Machine;
pub use manifests::{overlays, render};
pub use node::Node;
pub use schemas::{SCHEMA_LOCATION, write_schemas};
