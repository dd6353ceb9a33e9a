-- finish: record how a body ended, as done or as failed, and what it returned.
-- Guard: only the holder, by its fence. An expired lease is allowed until another caller takes it.
-- KEYS: the key. ARGV: now, owner, fence, state, ttl or '', 1 if the body started or else 0, then
-- names and values to store.
local state, ttl = ARGV[4], tonumber(ARGV[5])

local found = read(KEYS[1])
if not is_of(found, ARGV[2], ARGV[3]) then
  return 0
end
if found.state ~= 'held' then
  -- A repeated call, because the first answer may have been lost.
  return found.state == state and 1 or 0
end
-- This comes first because a Redis that is full allows it, and then the rest of the script. If
-- the script failed, the body would run again although it has had its effect.
keep(KEYS[1], ttl and now + ttl)
redis.call('HSET', KEYS[1], 'state', state, 'ended_at', now, unpack(ARGV, 7))
if state == 'failed' then
  redis.call('HSET', KEYS[1], 'losses', 0, 'attempts', found.attempts - 1 + ARGV[6])
end
if ttl then
  redis.call('HSET', KEYS[1], 'kept_until', now + ttl)
else
  redis.call('HDEL', KEYS[1], 'kept_until')
end
return 1
