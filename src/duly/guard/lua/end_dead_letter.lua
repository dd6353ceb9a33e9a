-- end_dead_letter: say of an open dead letter what became of it.
-- Guard: only an open one.
-- KEYS: the letter. ARGV: now, state, actor, reason.
if redis.call('HGET', KEYS[1], 'state') ~= 'open' then
  return 0
end
redis.call(
  'HSET', KEYS[1], 'state', ARGV[2], 'actor', ARGV[3], 'reason', ARGV[4], 'ended_at', now
)
return 1
