//! The scripts that the server runs, one for each operation on a shard, so that each operation is atomic and takes one
//! round trip. They do what `halocline_model::namespace::Shards` does; all that they do with the value of a name is to
//! compare and replace it.
//!
//! `KEYS[1]` is the marker of the partition's epoch: it says in which epoch the names of the partition are confirmed,
//! and by which server. The other keys belong to the shard: its content, its entries, their order, its locks, and the
//! intents that it committed, first those with locks left to finish and then the others. `ARGV[1]` has the epoch that
//! the node knows and the number under which the node holds leases; a script that asks for a lease of the directory
//! adds how many microseconds the lease lasts, and how long others must have left the directory alone. A slot is `n`
//! and a name, `p` (the parent), `a` (the attributes) or `w` (the whole shard).
//!
//! A node that has listed a directory may get a lease of it, under which it trusts its listing for some milliseconds
//! ([`Scripts::lease`]). Changes of the directory and locks in it then wait until the lease ends, unless they come from
//! the node that holds the lease, which knows of them. No lease is granted while something is locked, while somebody
//! waits, or shortly after a change by another node. A node that is the only one to change a directory gets a lease
//! with each change, so that it need not ask for what it has just made.

use redis::Script;

use crate::store::redis::server_identity::SERVER_IDENTITY as ID;

/// Refuses to do anything if names of this partition may have been forgotten, or if a new epoch began: the server's
/// `run_id` changes with each start, its `master_replid` with each promotion, and the marker is lost with the names.
const EPOCH: &str = r"
local marker = redis.call('HMGET', KEYS[1], 'id', 'epoch')
local epoch, lessee, for_us, quiet_us = string.match(ARGV[1], '^(%d+) ?(%d*) ?(%d*) ?(%d*)$')
if marker[1] ~= id or not epoch or marker[2] ~= epoch then return {'stale'} end
";

/// The state of a shard that all scripts use, and the limit of the values that they return.
const SHARD: &str = r"
local shard, names, order, locks, committed, finished = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local head = redis.call('HMGET', shard, 'kind', 'locked', 'next', 'changed', 'version', 'lease', 'lessee', 'changer', 'alone_since', 'awaited')
local kind, locked, next_place, changed = head[1], tonumber(head[2] or '0'), head[3], head[4] or '0'
local version, changer, alone_since = head[5] or '0', head[8], head[9] or '0'
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
/// values before and after (empty for none), and a flag.
const REFUSAL: &str = r"
local function refusal(first)
  if head[6] and head[7] ~= lessee then
    local left = tonumber(head[6]) - now_us()
    -- A longer one was given before the clock was set back.
    if left > 0 and left <= 250000 then
      redis.pcall('HSET', shard, 'awaited', head[6])
      return {'leased', string.format('%.0f', left)}
    end
  end
  for at = first, #ARGV, 5 do
    local what, slot, from = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local intent = in_the_way(slot)
    if intent then return {'busy', intent} end
    local fits
    if what == 'n' then
      fits = kind == 'd' and (redis.call('HGET', names, string.sub(slot, 2)) or '') == from
    elseif what == 'p' then
      fits = kind == 'd' and redis.call('HGET', shard, 'parent') == from
    elseif what == 'a' then
      fits = kind == 'd' and redis.call('HGET', shard, 'value') == from
    elseif what == 'l' then
      fits = kind == 'l' and redis.call('HGET', shard, 'value') == from
    elseif what == 'e' then
      fits = kind == 'd'
      if fits and redis.call('HLEN', names) > 0 then return {'full'} end
    end
    if not fits then return {'differs'} end
  end
end
";

/// Makes a change that was compared before. The flag means: for a name, that the directory's time changes with it; for
/// attributes, that they contain that time; for links, that the last one goes. At the end `save` writes what else
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
    end
  elseif what == 'l' then
    if flag == '1' then ends = true else redis.call('HSET', shard, 'value', to) end
  elseif what == 'e' then
    ends = true
  end
end
local function make_all(first)
  for at = first, #ARGV, 5 do make(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) end
end
local function save()
  if ends then
    redis.call('DEL', shard, names, order, locks, committed, finished)
  elseif kind == 'd' then
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
  if kind ~= 'd' or locked > 0 or version == '0' or not for_us or for_us == '' then return false end
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
  if ends or kind ~= 'd' or not for_us or for_us == '' then return {'done'} end
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
if first == 'n' and kind == 'd' then
  return {'name', bounded(redis.call('HGET', names, string.sub(slot, 2))), redis.call('HGET', shard, 'settlements') or '0', leased}
elseif first == 'p' and kind == 'd' then
  return {'parent', bounded(redis.call('HGET', shard, 'parent'))}
elseif first == 'a' and kind == 'd' then
  return {'attributes', bounded(redis.call('HGET', shard, 'value')), changed, leased}
elseif first == 'w' and kind == 'l' then
  return {'links', bounded(redis.call('HGET', shard, 'value'))}
end
return {'differs'}
";

/// Arguments: the place after which to list, the number of entries, and their bytes at most; at least one entry is
/// returned.
const LIST: &str = r"
if kind ~= 'd' then return {'differs'} end
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

/// Returns what a check needs: the kind of the shard, the intents of its locks, and those that it committed.
const INSPECT: &str = r"
local all, room = {'inspected', kind}, 16777216
local function add(what, value)
  local intent = bounded(value)
  room = room - #intent
  if room < 0 then error(redis.error_reply('UNSOUND intents are too long')) end
  all[#all + 1] = what
  all[#all + 1] = intent
end
if redis.call('HLEN', locks) + redis.call('HLEN', committed) + redis.call('HLEN', finished) > 100000 then
  error(redis.error_reply('UNSOUND too many intents'))
end
for _, lock in ipairs(redis.call('HVALS', locks)) do
  add('l', cmsgpack.unpack(lock)[2])
end
for _, key in ipairs({committed, finished}) do
  for _, intent in ipairs(redis.call('HVALS', key)) do
    add('c', intent)
  end
end
return all
";

/// Removes the shard, which may have many entries: the server frees them in the background.
const REMOVE: &str = r"
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
return {'done'}
";

/// Removes the marker.
const ERASE: &str = r"
redis.call('DEL', KEYS[1])
return {'done'}
";

/// `KEYS[1]` is the marker. Returns the epoch in which the partition is confirmed, or nothing; whether there is a
/// marker; and whether a check holds the names.
const PROBE: &str = r"
local marker = redis.call('HMGET', KEYS[1], 'id', 'epoch', 'held')
if not marker[1] then return {'', '0', '0'} end
return {marker[1] == id and marker[2] or '', '1', marker[3] or '0'}
";

/// `KEYS[1]` is the marker; the arguments are the number of the new epoch, and whether others are kept out of it. A
/// server that forgot which numbers it gave continues from its clock, with one number for each microsecond: no two
/// epochs begin at the same number, and no epoch gives numbers faster than time passes.
const BEGIN: &str = r"
local numbers = tonumber(redis.call('HGET', KEYS[1], 'numbers') or '0') or 0
local clock = redis.call('TIME')
numbers = math.max(numbers, tonumber(clock[1]) * 1048576 + tonumber(clock[2]))
redis.call('HSET', KEYS[1], 'id', id, 'epoch', ARGV[1], 'held', ARGV[2], 'numbers', string.format('%.0f', numbers))
return {'done'}
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
            reserve: of(&[ID, EPOCH, RESERVE]),
            inspect: there(&[INSPECT]),
            remove: of(&[ID, EPOCH, REMOVE]),
            probe: of(&[ID, PROBE]),
            begin: of(&[ID, BEGIN]),
            erase: of(&[ERASE]),
        }
    }
}
