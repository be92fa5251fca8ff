-- ARGV: id, first, last, segment record (JSON). Binds a stored segment and trims what it holds, in one step:
-- a reader sees these events either in the stream or in the segment. Returns 0 when another was faster.
local task = task_key(ARGV[1])
local newest = redis.call('ZREVRANGE', task .. ':segments', 0, 0, 'WITHSCORES')
if tonumber(newest[2] or 0) + 1 ~= tonumber(ARGV[2]) or redis.call('EXISTS', task) == 0 then
  return 0
end
redis.call('ZADD', task .. ':segments', ARGV[3], ARGV[4])
redis.call('XTRIM', task .. ':events', 'MINID', whole(ARGV[3] + 1) .. '-0')
return 1
