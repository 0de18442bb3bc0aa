//! What the server runs: one script a request, so each is one round trip and happens in one moment.
//!
//! Each looks first whether the server is the one that wrote the marker of the epoch: its `run_id` is another one after
//! each start, its `master_replid` after each promotion, and the marker itself is gone where the data are. If not, the
//! server may have forgotten something, and a new epoch begins with the number that the caller brought.

use redis::Script;

/// `KEYS[1]` is the marker, `ARGV[1]` the number of an epoch that would begin now.
const EPOCH: &str = r"
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
local id = string.match(info, 'run_id:(%w+)') .. string.match(info, 'master_replid:(%w+)')
local marker = redis.call('HMGET', KEYS[1], 'id', 'epoch')
local epoch = marker[2]
if marker[1] ~= id or not epoch then
  epoch = ARGV[1]
  redis.call('HSET', KEYS[1], 'id', id, 'epoch', epoch)
end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local limit = 16777216
";

/// The value of a hash's field, or an empty one, if it is not too large. Tables with too many fields are refused likewise.
const BOUNDED: &str = r"
local function field(key, name)
  if redis.call('HSTRLEN', key, name) > limit then return redis.error_reply('UNSOUND too large') end
  return redis.call('HGET', key, name) or ''
end
";

/// `KEYS[2]` is a file's. Returns epoch, version and tokens.
const READ: &str = r"
return {epoch, field(KEYS[2], 'v'), field(KEYS[2], 't')}
";

/// `KEYS[2]` is a file's; arguments are the expected version, the epoch, the new version and tokens, and after how many
/// milliseconds they are forgotten, or 0. Returns `1`, or what is there.
const SWAP: &str = r"
local version = redis.call('HGET', KEYS[2], 'v') or '0'
if epoch ~= ARGV[3] or version ~= ARGV[2] then
  return {0, epoch, field(KEYS[2], 'v'), field(KEYS[2], 't')}
end
redis.call('HSET', KEYS[2], 'v', ARGV[4], 't', ARGV[5])
if ARGV[6] == '0' then redis.call('PERSIST', KEYS[2]) else redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
return {1, '', '', ''}
";

/// `KEYS[2]` is the members', `KEYS[3]` the leases'. Returns epoch, version, members, the clock, and leases.
const ROLL: &str = r"
if redis.call('HLEN', KEYS[3]) > 100000 then return redis.error_reply('UNSOUND too many leases') end
return {epoch, field(KEYS[2], 'v'), field(KEYS[2], 'm'), now, redis.call('HGETALL', KEYS[3])}
";

/// Arguments: expected version, epoch, new version, members; what is done to whose lease, and for how long.
const SWAP_MEMBERS: &str = r"
local version = redis.call('HGET', KEYS[2], 'v') or '0'
if epoch ~= ARGV[3] or version ~= ARGV[2] then return 0 end
if ARGV[6] == 'runs' then
  redis.call('HSET', KEYS[3], ARGV[7], string.format('%.0f', now + tonumber(ARGV[8])))
elseif ARGV[6] == 'over' then
  local till = tonumber(redis.call('HGET', KEYS[3], ARGV[7]) or '0') or 0
  if till > now then return 0 end
  redis.call('HDEL', KEYS[3], ARGV[7])
elseif ARGV[6] == 'ends' then
  redis.call('HDEL', KEYS[3], ARGV[7])
end
redis.call('HSET', KEYS[2], 'v', ARGV[4], 'm', ARGV[5])
return 1
";

/// `KEYS[2]` is the leases'. Arguments: epoch, session, for how long.
const RENEW: &str = r"
local till = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '0') or 0
if epoch ~= ARGV[2] or till <= now then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], string.format('%.0f', now + tonumber(ARGV[4])))
return 1
";

/// `KEYS[1]` is a session's list; the argument is a file. What nobody hears is forgotten.
const TELL: &str = r"
redis.call('LREM', KEYS[1], 0, ARGV[1])
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -1024, -1)
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
";

/// All of them.
pub(super) struct Scripts {
    pub(super) read: Script,
    pub(super) swap: Script,
    pub(super) roll: Script,
    pub(super) swap_members: Script,
    pub(super) renew: Script,
    pub(super) tell: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        let script = |body: &str| Script::new(&format!("{EPOCH}{BOUNDED}{body}"));
        Self {
            read: script(READ),
            swap: script(SWAP),
            roll: script(ROLL),
            swap_members: script(SWAP_MEMBERS),
            renew: script(RENEW),
            tell: Script::new(TELL),
        }
    }
}
