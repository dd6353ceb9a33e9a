-- The common start of all other scripts: the time, and the record of a key.
-- Numbers stay below 2^53, so Lua represents them exactly. Redis writes them with 17 digits.

-- Redis's own time in microseconds, unless a test passes a time.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local FIELDS = {
  'state', 'owner', 'holder', 'fence', 'fingerprint', 'attempts', 'losses', 'lease_ends',
  'began_at', 'ended_at', 'kept_until', 'result', 'problem',
}

-- Returns the record of a key, or nil if there is none. Missing fields are false.
local function read(key)
  local values = redis.call('HMGET', key, unpack(FIELDS))
  if not values[1] then
    return nil
  end
  local found = {}
  for place, name in ipairs(FIELDS) do
    found[name] = values[place]
  end
  return found
end

local function is_held(found)
  return found.state == 'held' and tonumber(found.lease_ends) > now
end

-- Returns whether a key has expired. Redis removes it some time later.
local function is_over(found)
  return found.kept_until and tonumber(found.kept_until) <= now and not is_held(found)
end

-- Returns whether a key belongs to this owner, with this fence.
local function is_of(found, owner, fence)
  return found ~= nil and found.owner == owner and found.fence == fence
end

-- Makes Redis remove a key at an instant, on the clock of `now`. False means never.
-- This uses PEXPIRE and not PEXPIREAT, since a test's clock is not the server's. Redis itself
-- writes the instant to its log and to its replicas.
local function keep(key, instant)
  if instant then
    redis.call('PEXPIRE', key, math.max(1, math.ceil((instant - now) / 1000)))
  else
    redis.call('PERSIST', key)
  end
end

-- Returns when a held key may be removed: `room` after its lease at the earliest, so that a late
-- holder can still report that it is done.
local function held_until(kept_until, lease_ends, room)
  return kept_until and math.max(kept_until, lease_ends + room)
end
