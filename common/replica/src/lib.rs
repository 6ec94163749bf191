//! One replica of one partition: the pure core and the log in one synchronous unit.
