//! Makes the components of an extent engine from two directories and a configuration.

use std::path::Path;
use std::sync::Arc;

use halocline_model::admit::{OriginSide, Setting};
use halocline_model::evict;
use halocline_model::layout::CacheGeometry;

use crate::coherence::REGISTRY;
use crate::components::{Base, Components};
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::identify::Identifier;
use crate::servers::{self, Decorations, Meters};
use crate::settings::Settings;
use halocline_api::config::{Binding, Config, Mode, Shares};
use halocline_api::globs::Globs;
use halocline_meta::lease::Lease;
use halocline_meta::load::Recovery;
use halocline_meta::record_stores::by_name;
use halocline_meta::table::{self, ExtentTable};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::open_files::OpenFiles;
use halocline_storage::volume::objects::CacheObjects;
use halocline_storage::volume::{Origin, Volume};
use halocline_vfs::namespace::Namespace;

/// What an engine is made of, before its threads run.
pub(super) struct Assembled {
    pub(super) base: Base,
    pub(super) components: Components,
    pub(super) meters: Meters,
    /// What the last session left.
    pub(super) recovery: Recovery,
}

/// Opens both sides, and makes the components over them. Nothing of what the last session left is taken over yet.
///
/// # Errors
/// As [`ExtentEngine::open`](super::ExtentEngine::open).
pub(super) fn assemble(
    origin_dir: &Path,
    cache_dir: &Path,
    config: &Config,
    around: Decorations<'_>,
) -> Result<Assembled> {
    // Checked before anything is touched, and again under the cache's lock, when it is claimed.
    let binding = Binding::of(origin_dir, config)?;
    binding.check(cache_dir)?;
    let mut meters = Meters::default();
    let shape = Origin::shape_in(origin_dir, config.origin_shape())?;
    let place = (origin_dir, shape);
    let found = servers::open_origin(place, config, &mut meters, around, Origin::open_unless_new)?;
    let geometry = geometry(config);
    let setting = Setting {
        origin: OriginSide {
            servers: shape.servers,
            stripe: shape.stripe,
            profile: servers::origin_profile(origin_dir, config),
        },
        cache: servers::cache(geometry, cache_dir, config),
    };
    let settings = settings_of(config, &setting, origin_dir, cache_dir);
    let identifier = Identifier::new(setting, &config.policy, around.clock.clone())?;
    let shares = servers::shares(cache_dir, config, around.data_bytes)?;
    let mut options = options(shares, origin_dir, config, around.clock)?;
    options.record_store = Some(by_name(&config.record_store, around.record_stores)?);
    if around.coherence.is_some() {
        // After a crash everything that is recorded as dirty goes to the origin. Other nodes, too, may have had
        // tokens for the clean bytes beside it, and may have written newer ones by then (I13).
        options.intent_bytes = 1;
    }
    // The store comes before the volume: it finds out whether the directory is ours (I8).
    let boot_id = around.boot_id;
    let (dmt, recovery) = open_tables(cache_dir, options, boot_id)?;
    binding.check(cache_dir)?;
    binding.record(cache_dir)?;
    let cache = servers::open_cache(cache_dir, config, &mut meters, around)?;
    servers::check_servers(&cache, &dmt, cache_dir)?;
    let lease = Lease::open(cache_dir, boot_id)?;
    let globs = Globs::load(cache_dir, &config.pin, &config.exclude)?;
    // Whatever else can refuse comes before a directory becomes a volume, which it stays.
    let origin = match found {
        Some(origin) => origin,
        None => servers::open_origin(place, config, &mut meters, around, Origin::open_or_create)?,
    };
    let namespace = Namespace::open(origin.namespace_dir())?.hiding(REGISTRY);
    let namespace = if around.coherence.is_some() { namespace.shared() } else { namespace };
    let (objects, flush_handles) = within_open_files(cache, geometry, &origin)?;
    let store = ExtentStore::new(dmt, objects, geometry);
    let base = Base::new(
        (namespace, origin),
        (store, flush_handles),
        settings,
        around.clock,
        around.coherence,
    );
    let components = Components::wire(&base, lease, identifier, globs);
    Ok(Assembled { base, components, meters, recovery })
}

fn geometry(config: &Config) -> CacheGeometry {
    let shape = config.cache_shape();
    CacheGeometry::new(shape.servers, shape.stripe, config.groups)
}

fn settings_of(
    config: &Config,
    setting: &Setting,
    origin_dir: &Path,
    cache_dir: &Path,
) -> Settings {
    Settings {
        config: config.clone(),
        setting: setting.clone(),
        origin_dir: origin_dir.to_owned(),
        cache_dir: cache_dir.to_owned(),
    }
}

/// The components that hold many files open, limited so that programs can open theirs.
fn within_open_files(
    cache: Volume,
    geometry: CacheGeometry,
    origin: &Origin,
) -> Result<(CacheObjects, Arc<FlushHandles>)> {
    let open_files = OpenFiles::of_process()?;
    let objects_max = open_files.objects / cache.servers().len();
    // A file of a striped origin opens one file on each server, and its node.
    let each = if origin.is_striped() { origin.servers().len() + 1 } else { 1 };
    let objects = CacheObjects::new(cache, geometry).with_open_files_max(objects_max);
    Ok((objects, FlushHandles::new(open_files.flush_handles / each)))
}

fn options(
    shares: Shares,
    origin_dir: &Path,
    config: &Config,
    clock: &Clock,
) -> Result<table::Options> {
    let (eviction, clock) = (eviction(&config.eviction)?, clock.clone());
    Ok(table::Options {
        records_bytes: shares.records,
        witness: Some(origin_dir.to_owned()),
        marks_witness: config.mode != Mode::WriteThrough,
        checksums: config.checksums,
        clock: Box::new(move || clock.now_ms()),
        ..table::Options::new(shares.data, eviction, config.cdt_entries)
    })
}

fn open_tables(
    dir: &Path,
    options: table::Options,
    boot_id: Option<&str>,
) -> Result<(ExtentTable, Recovery)> {
    match boot_id {
        Some(boot_id) => ExtentTable::open_on_boot(dir, options, boot_id),
        None => ExtentTable::open(dir, options),
    }
}

fn eviction(name: &str) -> Result<Box<dyn evict::Eviction>> {
    evict::by_name(name).map_err(|unknown| {
        Error::invalid(unknown.to_string(), "choose one of them with --eviction")
    })
}
