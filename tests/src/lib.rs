//! Tests of the whole: real processes, real parts, simulations.
