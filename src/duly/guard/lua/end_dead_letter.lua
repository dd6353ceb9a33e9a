-- end_dead_letter: record how an open dead letter ended.
-- Guard: the dead letter is open.
-- KEYS: the dead letter. ARGV: now, state, actor, reason.
if redis.call('HGET', KEYS[1], 'state') ~= 'open' then
  return 0
end
redis.call(
  'HSET', KEYS[1], 'state', ARGV[2], 'actor', ARGV[3], 'reason', ARGV[4], 'ended_at', now
)
return 1
