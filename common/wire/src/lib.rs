//! Between the wire messages and the domain types, with validation; errors to gRPC statuses.
