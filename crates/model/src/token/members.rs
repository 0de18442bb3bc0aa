//! The members: sessions, whether they are alive, and whether the store knows what they hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Epoch, Session};

/// What the store knows about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Life {
    /// Its lease is valid.
    Live,
    /// Its lease has expired. What it held exclusively is granted to no one until its cache is recovered or given up,
    /// because it may have dirty bytes; its other tokens are void.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Member {
    life: Life,
    /// The last epoch in which it reported what it holds.
    asserted: Epoch,
}

/// The sessions, as one value in the store. This value may be lost, or an older one may come back. The authoritative
/// list of sessions is the registry on the origin: each session enters it before it joins here, and leaves it (or is
/// removed after its recovery) when nothing of it remains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members {
    confirmed: Option<Epoch>,
    sessions: BTreeMap<Session, Member>,
}

impl Members {
    /// A session without tokens joins.
    pub fn join(&mut self, session: Session, epoch: Epoch) {
        self.sessions.insert(session, Member { life: Life::Live, asserted: epoch });
    }

    /// A session has reported, file by file, what it holds.
    pub fn assert(&mut self, session: Session, epoch: Epoch) {
        self.join(session, epoch);
    }

    /// Lets tokens be granted in `epoch`.
    ///
    /// # Errors
    /// The sessions of the `registry` that have not yet reported what they hold: live ones will, and the others must be
    /// recovered or given up first, because the store may have forgotten under which tokens they have dirty bytes.
    pub fn confirm(&mut self, epoch: Epoch, registry: &[Session]) -> Result<(), Vec<Session>> {
        let asserted = |session: &&Session| {
            self.sessions.get(*session).is_some_and(|member| member.asserted == epoch)
        };
        let missing: Vec<_> =
            registry.iter().filter(|session| !asserted(session)).copied().collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        // Sessions that an older table brought back.
        self.sessions.retain(|session, _| registry.contains(session));
        self.confirmed = Some(epoch);
        Ok(())
    }

    /// Whether tokens are granted in `epoch`.
    #[must_use]
    pub fn grants(&self, epoch: Epoch) -> bool {
        self.confirmed == Some(epoch)
    }

    /// The state of a session; `None` for one whose tokens are all void.
    #[must_use]
    pub fn life(&self, session: Session) -> Option<Life> {
        self.sessions.get(&session).map(|member| member.life)
    }

    /// Whether a session has reported in `epoch` what it holds.
    #[must_use]
    pub fn has_asserted(&self, session: Session, epoch: Epoch) -> bool {
        self.sessions.get(&session).is_some_and(|member| member.asserted == epoch)
    }

    /// The lease of a session has expired by the store's clock, that is, later than by the session's own.
    pub fn lease_is_over(&mut self, session: Session) {
        if let Some(member) = self.sessions.get_mut(&session) {
            member.life = Life::Gone;
        }
    }

    /// Renews the lease of a session. `false` if the store no longer knows what the session holds, so that it must
    /// [`assert`](Self::assert) that first, or if the session was recovered and must begin again.
    pub fn renew(&mut self, session: Session, epoch: Epoch) -> bool {
        match self.sessions.get_mut(&session) {
            Some(member) if member.asserted == epoch => {
                member.life = Life::Live;
                true
            }
            _ => false,
        }
    }

    /// A session ended or was recovered: nothing of it remains.
    pub fn remove(&mut self, session: Session) {
        self.sessions.remove(&session);
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (Session, Life)> {
        self.sessions.iter().map(|(session, member)| (*session, member.life))
    }
}
