//! The pure core of replication: transitions without clocks, sockets, files, tasks or hash order.
