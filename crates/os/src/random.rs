//! Random numbers that nobody can guess: ids, and passwords of servers that live as long as a command.

use std::fs::File;
use std::io::{self, Read};

/// So many random bytes of the system.
///
/// # Errors
/// If `/dev/urandom` cannot be read.
pub fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }
}
