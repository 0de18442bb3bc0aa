//! Encodes values as bytes. Input is limited and checked before it is used: anyone who can reach the store can write
//! there.

use halocline_model::token::{Members, Tokens};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Result, StoreError};

/// The largest value that is decoded, in bytes: 100,000 tokens.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// Limit of the members.
const MEMBERS_MAX: usize = 100_000;

/// # Errors
/// If the value is too large.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(value).map_err(unsound)?;
    if bytes.len() > BYTES_MAX { Err(too_large(bytes.len())) } else { Ok(bytes) }
}

/// # Errors
/// If they are not tokens, or not of this version.
pub(super) fn tokens(bytes: &[u8], version: u64) -> Result<Tokens> {
    let tokens: Tokens = decode(bytes)?;
    if tokens.version != version || !tokens.is_sound() {
        return Err(StoreError::Unsound("tokens that contradict each other".to_owned()));
    }
    Ok(tokens)
}

/// # Errors
/// If they are not members.
pub(super) fn members(bytes: &[u8]) -> Result<Members> {
    let members: Members = decode(bytes)?;
    if members.sessions().take(MEMBERS_MAX + 1).count() > MEMBERS_MAX {
        return Err(StoreError::Unsound(format!("more than {MEMBERS_MAX} members")));
    }
    Ok(members)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    if bytes.len() > BYTES_MAX {
        return Err(too_large(bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(unsound)
}

fn unsound(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unsound(error.to_string())
}

fn too_large(len: usize) -> StoreError {
    StoreError::Unsound(format!("a value of {len} bytes, more than {BYTES_MAX}"))
}

#[cfg(test)]
mod tests {
    use halocline_model::token::Epoch;

    use super::*;

    #[test]
    fn what_others_wrote_is_an_error() {
        let mut empty = Tokens::new(Epoch(7));
        empty.version = 3;
        let bytes = encode(&empty).unwrap();
        assert_eq!(tokens(&bytes, 3).unwrap(), empty);
        assert!(tokens(&bytes, 4).is_err(), "another version than it says");
        for end in 0..bytes.len() {
            assert!(tokens(&bytes[..end], 3).is_err());
        }
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert!(tokens(&deep, 3).is_err());
        assert!(members(&deep).is_err());
        assert!(tokens(&vec![b' '; BYTES_MAX + 1], 3).is_err());
        let said =
            members(b"{\"confirmed\":1,\"sessions\":{\"5\":{\"life\":\"Live\",\"asserted\":1}}}");
        assert_eq!(said.unwrap().sessions().count(), 1);
        assert!(members(b"{\"confirmed\":1,\"sessions\":{\"-5\":{}}}").is_err());
    }
}
