//! Whether origin and cache respond at all, for queries about a mount: a hanging device or network file server gives no
//! error, and everything that needs it waits silently.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bon::Builder;

use crate::extent::store::ExtentStore;
use crate::origin_access::OriginAccess;
use crate::settings::Settings;
use halocline_os::timed_calls::TimedCalls;
use halocline_vfs::namespace::Namespace;

/// How long a directory may take to report its space: far longer than a busy disk needs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks both sides of a cache.
#[derive(Debug, Builder)]
pub(crate) struct HangDetector {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    settings: Arc<Settings>,
    #[builder(skip)]
    origin_calls: TimedCalls,
    #[builder(skip)]
    cache_calls: TimedCalls,
}

impl HangDetector {
    /// Names the side that does not respond, for people; `None` if both do.
    pub(crate) fn silent(&self) -> Option<String> {
        let origin = || {
            let (namespace, origin) = (Arc::clone(&self.namespace), Arc::clone(&self.origin));
            let look = move || {
                // An error counts as a response.
                let _answered = namespace.statfs(&namespace.root());
                for server in origin.data.servers() {
                    let _answered = server.device().space();
                }
            };
            self.origin_calls.within(ANSWER_TIMEOUT, look).is_some()
        };
        let cache = || {
            let store = Arc::clone(&self.store);
            let look = move || {
                for server in store.objects.volume().servers() {
                    let _answered = server.device().space();
                }
            };
            self.cache_calls.within(ANSWER_TIMEOUT, look).is_some()
        };
        let (of_origin, of_cache) = thread::scope(|scope| {
            let of_cache = scope.spawn(cache);
            (origin(), of_cache.join().unwrap_or(true))
        });
        let silent = |what: &str, dir: &Path| {
            format!(
                "{}: the {what} does not answer: its device or server hangs, and what needs it waits; \
                 `umount --force` waits for nothing and leaves dirty data on the cache",
                dir.display()
            )
        };
        let settings = &self.settings;
        if !of_origin {
            return Some(silent("origin", &settings.origin_dir));
        }
        (!of_cache).then(|| silent("cache", &settings.cache_dir))
    }
}
