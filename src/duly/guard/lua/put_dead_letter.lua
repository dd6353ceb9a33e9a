-- put_dead_letter: store a dead letter once, and remove a few expired ones from the indexes.
-- KEYS: the dead letter, the index by id, the index by end. ARGV: now, id, ttl or '', limit, then
-- names and values to store.
local id, ttl, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- This must be the first write: a Redis that is full refuses only the first write of a script.
-- All scores of this index are equal, so it is sorted by id.
local is_new = redis.call('ZADD', KEYS[2], 0, id) == 1
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', KEYS[2], old)
  redis.call('ZREM', KEYS[3], old)
  is_new = is_new or old == id
end
if not is_new and redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end

redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'state', 'open', 'created_at', now, 'id', id, unpack(ARGV, 5))
redis.call('ZADD', KEYS[2], 0, id)
if ttl then
  redis.call('ZADD', KEYS[3], now + ttl, id)
else
  redis.call('ZREM', KEYS[3], id)
end
keep(KEYS[1], ttl and now + ttl)
return 1
