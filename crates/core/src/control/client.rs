//! The asking end of the control socket.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::address::Address;
use super::bounds::REQUEST_BYTES_MAX;
use super::{Progress, Request};
use crate::error::{Error, Result};

/// A connection to a mount process.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    lines: BufReader<UnixStream>,
}

/// One line from the server.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer<T> {
    Progress(Progress),
    Ok(T),
    Error { message: String, errno: i32 },
}

impl Client {
    /// Connects to the socket of a mount process.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = Address::of(socket)
            .and_then(|address| UnixStream::connect(address.path()))
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::invalid(
                    format!("{}: no mount process answers here", socket.display()),
                    "mount the origin with this cache first; after a crash, mount it again: \
                     recovery is automatic",
                ),
                _ => Error::at(socket, "connect to the control socket")(error),
            })?;
        Ok(Self { socket: socket.to_owned(), lines: BufReader::new(stream) })
    }

    /// Sends a request and waits for its answer, passing progress on.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<T> {
        let mut line = serde_json::to_vec(request).map_err(std::io::Error::from)?;
        line.push(b'\n');
        if line.len() > REQUEST_BYTES_MAX {
            return Err(Error::invalid(
                format!("a request of {} bytes; the mount takes {REQUEST_BYTES_MAX}", line.len()),
                "name fewer files at a time",
            ));
        }
        let at = |error| Error::at(&self.socket, "talk to the mount process")(error);
        self.lines.get_mut().write_all(&line).map_err(at)?;
        loop {
            line.clear();
            if self.lines.read_until(b'\n', &mut line).map_err(at)? == 0 {
                return Err(at(ErrorKind::UnexpectedEof.into()));
            }
            match serde_json::from_slice(&line) {
                Ok(Answer::Progress(now)) => progress(now),
                Ok(Answer::Ok(value)) => return Ok(value),
                Ok(Answer::Error { message, errno }) => {
                    return Err(Error::Refused { message, errno });
                }
                Err(error) => {
                    return Err(Error::invalid(
                        format!("{}: unexpected answer: {error}", self.socket.display()),
                        "use the halocline command of the version that mounted",
                    ));
                }
            }
        }
    }
}
