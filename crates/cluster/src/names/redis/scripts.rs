//! The scripts that the server runs, one for each operation on a shard, so that each operation is atomic and takes one
//! round trip. They do what `halocline_model::namespace::Shards` does; all that they do with the value of a name is to
//! compare and replace it.
//!
//! `KEYS[1]` is the marker of the partition's epoch: it says in which epoch the names of the partition are confirmed,
//! and by which server. The other keys belong to the shard: its content, its entries, their order, its locks, and the
//! intents that it committed, first those with locks left to finish and then the others. `ARGV[1]` has the epoch that
//! the node knows and the number under which the node holds leases; a script that asks for a lease of the directory
//! adds how many microseconds the lease lasts, and how long others must have left the directory alone; a script that may
//! add a name adds, after a slash, from how many entries on a directory is split. A slot is `n` and a name, `p` (the
//! parent), `a` (the attributes) or `w` (the whole shard). A shard's kind is `d` (a directory), `D` (one with buckets, so
//! that nodes of versions that know none refuse it), `b` (a bucket) or `l` (the links of a file).
//!
//! A node that has listed a directory may get a lease of it, under which it trusts its listing for some milliseconds
//! ([`Scripts::lease`]). Changes of the directory and locks in it then wait until the lease ends, unless they come from
//! the node that holds the lease, which knows of them. No lease is granted while something is locked, while somebody
//! waits, or shortly after a change by another node. A node that is the only one to change a directory gets a lease
//! with each change, so that it need not ask for what it has just made.

mod checks;
mod splits;

use redis::Script;

use crate::store::redis::server_identity::SERVER_IDENTITY as ID;
use checks::{BEGIN, ERASE, INSPECT, PROBE, REMOVE};
use splits::{DISCARD, FILL, TOUCH};

/// Refuses to do anything if names of this partition may have been forgotten, or if a new epoch began: the server's
/// `run_id` changes with each start, its `master_replid` with each promotion, and the marker is lost with the names.
const EPOCH: &str = r"
local marker = redis.call('HMGET', KEYS[1], 'id', 'epoch')
local epoch, lessee, for_us, quiet_us, entries_max = string.match(ARGV[1], '^(%d+) ?(%d*) ?(%d*) ?(%d*) ?/?(%d*)$')
if marker[1] ~= id or not epoch or marker[2] ~= epoch then return {'stale'} end
";

/// The state of a shard that all scripts use, and the limit of the values that they return. Names in buckets change
/// without a word to their directory's server; until `touched`, its time moves on by itself, and from then on it stays.
const SHARD: &str = r"
local shard, names, order, locks, committed, finished = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local head = redis.call('HMGET', shard, 'kind', 'locked', 'next', 'changed', 'version', 'lease', 'lessee', 'changer', 'alone_since', 'awaited', 'buckets', 'touched', 'toucher')
local kind, locked, next_place, changed = head[1], tonumber(head[2] or '0'), head[3], head[4] or '0'
local version, changer, alone_since = head[5] or '0', head[8], head[9] or '0'
local is_directory, has_names = kind == 'd' or kind == 'D', kind == 'd' or kind == 'b'
local buckets, touched = head[11] or '', tonumber(head[12] or '0')
local asked_us
local function now_us()
  if not asked_us then
    local clock = redis.call('TIME')
    asked_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  end
  return asked_us
end
local function bounded(value)
  if value and #value > 73792 then error(redis.error_reply('UNSOUND a value is too long')) end
  return value or ''
end
if touched > 0 and math.min(touched, now_us()) > tonumber(changed) then
  changed = string.format('%.0f', math.min(touched, now_us()))
end
";

/// Refuses if there is no such shard.
const THERE: &str = r"
if not kind then return {'gone'} end
";

/// The intent that keeps a slot from being read or changed. The whole shard is blocked, too, by a committed intent of
/// which unfinished locks are left: somebody may still ask for it.
const IN_THE_WAY: &str = r"
local function in_the_way(slot)
  local lock
  if locked > 0 and slot == 'w' then
    lock = redis.call('HRANDFIELD', locks, 1, 'WITHVALUES')[2]
  elseif locked > 0 then
    local both = redis.call('HMGET', locks, slot, 'w')
    lock = both[1] or both[2]
  end
  if lock then return bounded(cmsgpack.unpack(lock)[2]) end
  if slot == 'w' then
    local unfinished = redis.call('HRANDFIELD', committed, 1, 'WITHVALUES')[2]
    if unfinished then return bounded(unfinished) end
  end
end
";

/// Why changes cannot be made now. They are in the arguments from `first` on, five for each: its kind, its slot, the
/// values before and after (empty for none), and a flag. A directory that is to be split before it gets another name has
/// that done by the node that is told so first; others wait for it, for 2 s at most.
const REFUSAL: &str = r"
local function leased()
  if head[6] and head[7] ~= lessee then
    local left = tonumber(head[6]) - now_us()
    -- A longer one was given before the clock was set back.
    if left > 0 and left <= 250000 then
      redis.pcall('HSET', shard, 'awaited', head[6])
      return {'leased', string.format('%.0f', left)}
    end
  end
end
local function full(entries)
  local splitting = redis.call('HMGET', shard, 'splitting', 'splitter')
  local left = tonumber(splitting[1] or '0') - now_us()
  if splitting[2] ~= lessee and left > 0 and left <= 2000000 then return {'splitting'} end
  redis.pcall('HSET', shard, 'splitting', string.format('%.0f', now_us() + 2000000), 'splitter', lessee)
  return {'crowded', string.format('%.0f', entries)}
end
local function has_no_room()
  if kind == 'b' and tonumber(next_place) >= 4294967232 then return {'differs'} end
  if kind == 'd' and entries_max ~= '' then
    local entries = redis.call('HLEN', names)
    if entries >= tonumber(entries_max) then return full(entries) end
  end
end
local function refusal_of(what, slot, from, to, flag)
  local intent = in_the_way(slot)
  if intent then return {'busy', intent} end
  local fits
  if what == 'n' then
    if kind == 'D' then return {'split', bounded(buckets)} end
    fits = has_names and (redis.call('HGET', names, string.sub(slot, 2)) or '') == from
    if fits and from == '' and to ~= '' then return has_no_room() end
  elseif what == 'p' then
    fits = is_directory and redis.call('HGET', shard, 'parent') == from
  elseif what == 'a' then
    fits = is_directory and redis.call('HGET', shard, 'value') == from
    -- Another node relies on it that the time moves on.
    if fits and flag == '1' and head[13] ~= lessee and touched > now_us() then
      return {'leased', string.format('%.0f', math.min(touched - now_us(), 250000))}
    end
  elseif what == 'l' then
    fits = kind == 'l' and redis.call('HGET', shard, 'value') == from
  elseif what == 'e' then
    if kind == 'D' and buckets ~= from then return {'split', bounded(buckets)} end
    if has_names and redis.call('HLEN', names) > 0 then return {'full'} end
    fits = kind ~= 'l' and buckets == from
  elseif what == 's' then
    if kind == 'D' then return {'split', bounded(buckets)} end
    fits = kind == 'd' and from == string.format('%s %.0f', version, redis.call('HLEN', names))
  end
  if not fits then return {'differs'} end
end
local function refusal(first)
  local refused = leased()
  for at = first, #ARGV, 5 do
    refused = refused or refusal_of(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  end
  return refused
end
";

/// Makes a change that was compared before. The flag means: for a name, that the directory's time changes with it; for
/// attributes, that they contain that time; for links, that the last one goes. A directory with buckets gets an intent
/// that cannot be: so a check of a version that knows none, and would take all buckets for leftovers, ends before it
/// removes anything. At the end `save` writes what else
/// changed, gives a directory a new version, which is a time, and notes since when one node alone has changed the
/// directory.
const MAKE: &str = r"
local ends = false
local function make(what, slot, from, to, flag)
  if what == 'n' then
    local name = string.sub(slot, 2)
    if to == '' then
      redis.call('HDEL', names, name)
      redis.call('ZREM', order, name)
    else
      redis.call('HSET', names, name, to)
      if from == '' then
        redis.call('ZADD', order, next_place, name)
        next_place = string.format('%.0f', tonumber(next_place) + 1)
      end
    end
    if flag == '1' then
      local now = now_us()
      if now > tonumber(changed) then changed = string.format('%.0f', now) end
    end
  elseif what == 'p' then
    redis.call('HSET', shard, 'parent', to)
  elseif what == 'a' then
    redis.call('HSET', shard, 'value', to)
    if flag == '1' then
      changed = '0'
      if touched > 0 then redis.call('HDEL', shard, 'touched', 'toucher') end
    end
  elseif what == 'l' then
    if flag == '1' then ends = true else redis.call('HSET', shard, 'value', to) end
  elseif what == 'e' then
    ends = true
  elseif what == 's' then
    redis.call('UNLINK', names, order)
    redis.call('HSET', shard, 'kind', 'D', 'buckets', to)
    redis.call('HDEL', shard, 'splitting', 'splitter')
    redis.call('HSET', finished, 'buckets', '')
  end
end
local function make_all(first)
  for at = first, #ARGV, 5 do make(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) end
end
local function save()
  if ends then
    redis.call('DEL', shard, names, order, locks, committed, finished)
  elseif kind ~= 'l' then
    version = string.format('%.0f', math.max(now_us(), tonumber(version) + 1))
    redis.call('HSET', shard, 'next', next_place, 'changed', changed, 'version', version)
    if changer ~= lessee then
      changer, alone_since = lessee, version
      redis.call('HSET', shard, 'changer', changer, 'alone_since', alone_since)
    end
  end
end
";

/// Arguments: kind, parent and value. No other node knows a new directory yet.
const NEW: &str = r"
if not kind then
  kind, version, changer = ARGV[2], string.format('%.0f', now_us()), lessee
  redis.call('HSET', shard, 'kind', kind, 'parent', ARGV[3], 'value', ARGV[4], 'next', '1', 'version', version, 'changer', changer)
  return followed('0')
end
local now = redis.call('HMGET', shard, 'parent', 'value')
local same = kind == ARGV[2] and now[1] == ARGV[3] and now[2] == ARGV[4] and redis.call('HLEN', names) == 0
return {same and 'done' or 'differs'}
";

/// Grants the node the lease of the directory that it asks for, if no other node has changed the directory or waited
/// for it for a while. A node that changes the directory itself must have been the only one to do so for longer, so
/// that nodes that change it in turn do not wait each time.
///
/// The longer others have left it alone, the longer the lease: a change waits for at most an eighth of the time in which
/// nobody else made one, and for a quarter of a second. Not so if the node only asks because it changes the directory
/// (`is_short`).
const GRANT: &str = r"
local granted_us
local function grant(is_short)
  if kind == 'l' or locked > 0 or version == '0' or not for_us or for_us == '' then return false end
  if touched > 0 and touched > now_us() then return false end
  local since, quiet = tonumber(version), tonumber(quiet_us)
  if lessee ~= '' and changer == lessee then
    since, quiet = tonumber(alone_since), quiet * 4
  end
  local now = now_us()
  local left_alone = now - math.max(since, tonumber(head[10] or '0'))
  if left_alone < quiet then return false end
  granted_us = math.min(tonumber(for_us), 100000)
  if not is_short then
    granted_us = math.max(granted_us, math.min(math.floor(left_alone / 8), 250000))
  end
  local lease, whose = now + granted_us, lessee
  if head[6] and tonumber(head[6]) > now then
    lease = math.max(lease, tonumber(head[6]))
    if head[7] ~= lessee then whose = 'several' end
  end
  local set = redis.pcall('HSET', shard, 'lease', string.format('%.0f', lease), 'lessee', whose)
  return type(set) == 'number'
end
";

/// What a change returns about its directory: the versions before and after it, when the names changed, and whether
/// the node has a lease of it.
const FOLLOWED: &str = r"
local function followed(before)
  if ends or kind == 'l' or not for_us or for_us == '' then return {'done'} end
  return {'done', before, version, changed, grant(true) and '1' or '0'}
end
";

/// Argument: the slot.
const READ: &str = r"
local slot = ARGV[2]
local intent = in_the_way(slot)
if intent then return {'busy', intent} end
local first = string.sub(slot, 1, 1)
local leased
if for_us and for_us ~= '' then leased = grant() and string.format('%s %.0f', version, granted_us) or '0' end
if first == 'n' and kind == 'D' then
  return {'split', bounded(buckets)}
elseif first == 'n' and has_names then
  return {'name', bounded(redis.call('HGET', names, string.sub(slot, 2))), redis.call('HGET', shard, 'settlements') or '0', leased}
elseif first == 'p' and is_directory then
  return {'parent', bounded(redis.call('HGET', shard, 'parent'))}
elseif first == 'a' and is_directory then
  return {'attributes', bounded(redis.call('HGET', shard, 'value')), changed, leased}
elseif first == 'w' and kind == 'l' then
  return {'links', bounded(redis.call('HGET', shard, 'value'))}
end
return {'differs'}
";

/// Arguments: the place after which to list, the number of entries, and their bytes at most; at least one entry is
/// returned.
const LIST: &str = r"
if kind == 'D' then return {'split', bounded(buckets)} end
if not has_names then return {'differs'} end
if locked > 0 then
  local lock = redis.call('HGET', locks, 'w')
  if lock then return {'busy', bounded(cmsgpack.unpack(lock)[2])} end
end
local limit, room = tonumber(ARGV[3]), tonumber(ARGV[4])
local found = redis.call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, limit + 1)
local count = math.min(#found / 2, limit)
local all, is_last = {'entries', ''}, #found / 2 <= limit
for first = 1, count, 64 do
  local some, slots = {}, {}
  for at = first, math.min(first + 63, count) do
    some[#some + 1] = found[2 * at - 1]
    slots[#slots + 1] = 'n' .. found[2 * at - 1]
  end
  if locked > 0 then
    for _, lock in ipairs(redis.call('HMGET', locks, unpack(slots))) do
      if lock then return {'busy', bounded(cmsgpack.unpack(lock)[2])} end
    end
  end
  for at, entry in ipairs(redis.call('HMGET', names, unpack(some))) do
    if not entry then error(redis.error_reply('UNSOUND a name without an entry')) end
    room = room - #bounded(entry) - #bounded(some[at])
    if room < 0 and #all > 2 then
      all[2] = '0 ' .. version
      return all
    end
    all[#all + 1] = found[2 * (first + at - 1)]
    all[#all + 1] = some[at]
    all[#all + 1] = entry
  end
end
all[2] = (is_last and '1 ' or '0 ') .. version
return all
";

/// Argument: the version that the node listed. Says whether the content is still that version, and whether the node
/// gets a lease.
const LEASE: &str = r"
if version ~= ARGV[2] or version == '0' or locked > 0 then return {'differs'} end
if grant() then return {'done', string.format('%.0f', granted_us)} end
return {'same'}
";

/// Arguments: the changes.
const ALONE: &str = r"
local refused = refusal(2)
if refused then return refused end
local before = version
make_all(2)
save()
return followed(before)
";

/// Arguments: number of the intent, the intent, and one change.
const PREPARE: &str = r"
local refused = refusal(4)
if refused then return refused end
redis.call('HSET', locks, ARGV[5], cmsgpack.pack({ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]}))
redis.call('HSET', shard, 'locked', string.format('%.0f', locked + 1))
return {'done'}
";

/// Arguments: number of the intent, the intent, the settlements, and the changes.
const DECIDE: &str = r"
if (redis.call('HGET', shard, 'settlements') or '0') ~= ARGV[4] then return {'differs'} end
local refused = refusal(5)
if refused then return refused end
make_all(5)
redis.call('HSET', committed, ARGV[2], ARGV[3])
redis.call('HDEL', finished, ARGV[2])
save()
return {'done'}
";

/// Argument: number of the intent.
const SETTLE: &str = r"
if redis.call('HEXISTS', committed, ARGV[2]) == 1 or redis.call('HEXISTS', finished, ARGV[2]) == 1 then
  return {'committed'}
end
redis.call('HINCRBY', shard, 'settlements', 1)
return {'aborted'}
";

/// Arguments: number of the intent, and whether it is committed.
const FINISH: &str = r"
if locked == 0 then return {'done'} end
local all = redis.call('HGETALL', locks)
for at = 1, #all, 2 do
  local lock = cmsgpack.unpack(all[at + 1])
  if lock[1] == ARGV[2] then
    redis.call('HDEL', locks, all[at])
    locked = locked - 1
    if ARGV[3] == '1' then make(lock[3], lock[4], lock[5], lock[6], lock[7]) end
  end
end
redis.call('HSET', shard, 'locked', string.format('%.0f', locked))
save()
return {'done'}
";

/// Argument: number of the intent.
const FINISHED: &str = r"
local intent = redis.call('HGET', committed, ARGV[2])
if intent then
  redis.call('HDEL', committed, ARGV[2])
  redis.call('HSET', finished, ARGV[2], intent)
end
return {'done'}
";

/// Argument: number of the intent.
const FORGET: &str = r"
redis.call('HDEL', committed, ARGV[2])
redis.call('HDEL', finished, ARGV[2])
return {'done'}
";

/// Argument: how many numbers. They begin after the time at which the epoch began, so that none is given twice even if
/// the server forgot which ones it gave.
const RESERVE: &str = r"
return {'numbers', string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'numbers', ARGV[2]) - tonumber(ARGV[2]))}
";

/// The scripts.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) new: Script,
    pub(super) read: Script,
    pub(super) list: Script,
    pub(super) lease: Script,
    pub(super) alone: Script,
    pub(super) prepare: Script,
    pub(super) decide: Script,
    pub(super) settle: Script,
    pub(super) finish: Script,
    pub(super) finished: Script,
    pub(super) forget: Script,
    pub(super) fill: Script,
    pub(super) discard: Script,
    pub(super) touch: Script,
    pub(super) reserve: Script,
    pub(super) inspect: Script,
    pub(super) remove: Script,
    pub(super) probe: Script,
    pub(super) begin: Script,
    pub(super) erase: Script,
}

impl Scripts {
    /// All of them, each with this first line.
    pub(super) fn new(first: &str) -> Self {
        let of = |bodies: &[&str]| Script::new(&[&[first], bodies].concat().concat());
        let there = |bodies: &[&str]| of(&[&[ID, EPOCH, SHARD, THERE], bodies].concat());
        Self {
            new: of(&[ID, EPOCH, SHARD, "local ends = false", GRANT, FOLLOWED, NEW]),
            read: there(&[IN_THE_WAY, GRANT, READ]),
            list: there(&[LIST]),
            lease: there(&[GRANT, LEASE]),
            alone: there(&[IN_THE_WAY, REFUSAL, MAKE, GRANT, FOLLOWED, ALONE]),
            prepare: there(&[IN_THE_WAY, REFUSAL, PREPARE]),
            decide: there(&[IN_THE_WAY, REFUSAL, MAKE, DECIDE]),
            settle: there(&[SETTLE]),
            finish: there(&[MAKE, FINISH]),
            finished: there(&[FINISHED]),
            forget: there(&[FORGET]),
            fill: there(&[MAKE, FILL]),
            discard: there(&[DISCARD]),
            touch: there(&[IN_THE_WAY, REFUSAL, MAKE, TOUCH]),
            reserve: of(&[ID, EPOCH, RESERVE]),
            inspect: there(&[INSPECT]),
            remove: of(&[ID, EPOCH, REMOVE]),
            probe: of(&[ID, PROBE]),
            begin: of(&[ID, BEGIN]),
            erase: of(&[ERASE]),
        }
    }
}
