//! What a program finds around itself: the store that its configuration names and the operating system's network, or what a
//! simulation puts in their place.

use std::sync::Arc;

use highwater_coordination::Coordination;
use highwater_node::network::{Network, SystemNetwork};

/// See the module. The default is the real thing.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The store, in place of the one that the configuration names.
    pub coordination: Option<Arc<dyn Coordination>>,
    /// The network, in place of the operating system's.
    pub network: Option<Arc<dyn Network>>,
}

impl Surroundings {
    /// The network to listen on, and to connect by.
    #[must_use]
    pub fn network(&self) -> Arc<dyn Network> {
        self.network.clone().unwrap_or_else(|| Arc::new(SystemNetwork))
    }
}
