//! What producers, consumers, the command line tool and the tests use.
