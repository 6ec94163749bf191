//! Who leads, which epoch, which in-sync set, which nodes live: versioned records behind one trait.
