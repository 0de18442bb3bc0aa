//! The password of the store that nodes share, which is no part of a command line.

use std::path::PathBuf;
use std::process::Command;

use halocline_cluster::store::redis;
use halocline_os::error::{Error, Result};
use halocline_os::{bounded, private};

use crate::print::tell;

/// The environment variable with the store's password, which is never part of a command line.
pub(crate) const PASSWORD: &str = "HALOCLINE_CLUSTER_PASSWORD";
/// The environment variable that names a file with the password.
const PASSWORD_FILE: &str = "HALOCLINE_CLUSTER_PASSWORD_FILE";
/// What to do about a password file that cannot be used.
const REMEDY_OF_FILE: &str = "name a file of yours with the password, of mode 0600";
/// The most bytes that this file may have.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// The password of the store, if it has one. It never comes from a command line, which others can see.
///
/// # Errors
/// If both variables are set, or if the file cannot be read or is readable by others.
pub(crate) fn password() -> Result<Option<String>> {
    let Some(path) = std::env::var_os(PASSWORD_FILE).map(PathBuf::from) else {
        return Ok(std::env::var(PASSWORD).ok());
    };
    if std::env::var_os(PASSWORD).is_some() {
        let what = format!("{PASSWORD} and {PASSWORD_FILE} are both set");
        return Err(Error::invalid(what, "set one of them"));
    }
    let file = private::open_secret(&path).map_err(|error| match error {
        Error::Path { .. } => Error::invalid(format!("{PASSWORD_FILE}: {error}"), REMEDY_OF_FILE),
        other => other,
    })?;
    let bytes = bounded::read_from(file, PASSWORD_BYTES_MAX).map_err(Error::at(&path, "read"))?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| {
        Error::invalid(format!("{}: not text", path.display()), "write the password into it")
    })?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Keeps the password of the user's own store from a command that uses another one, which has none: a server without a password
/// refuses whoever gives one.
pub(crate) fn clear(command: &mut Command) -> &mut Command {
    command.env_remove(PASSWORD).env_remove(PASSWORD_FILE)
}

/// Says once that other users see a password in a URL.
pub(crate) fn note_in_url(urls: &str) {
    if has_password(urls) {
        tell!(
            "halocline: note: other users see the password in --cluster when they list processes; give it by {PASSWORD_FILE}"
        );
    }
}

/// Says once that whoever reaches the store can use it, if it has no password and other machines may reach it.
pub(crate) fn note_none(urls: &str, password: Option<&str>) {
    if redis::is_open_to_machines(urls, password) {
        tell!(
            "halocline: warning: the store of --cluster is used without a password: whoever reaches it over the network can \
             read and change what nodes keep there, on a tier also names and owners of files; give it one \
             (requirepass), and name a file with it by {PASSWORD_FILE}"
        );
    }
}

/// Whether a URL, which is in a command line, has a password in it.
fn has_password(urls: &str) -> bool {
    urls.split(',').any(|url| {
        let server = url.split_once("://").map_or(url, |(_, server)| server);
        let user = server.rsplit_once('@').map(|(user, _)| user);
        let user = user.and_then(|user| user.split_once(':'));
        // As the URL of a socket has it.
        let beside = server.split_once('?').and_then(|(_, words)| words.split_once("pass="));
        user.or(beside).is_some_and(|(_, password)| !password.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_noticed() {
        for with in [
            "redis://:p@h",
            "redis://u:p@h:1/2",
            "redis://h,rediss://u:p@h",
            "redis://:@@h",
            "redis+unix:///s?pass=p",
        ] {
            assert!(has_password(with), "{with}");
        }
        for without in ["redis://h:1", "redis://u@h:1", "redis://u:@h", "redis+unix:///a:b", "x"] {
            assert!(!has_password(without), "{without}");
        }
    }
}
