-- ARGV: hash, key id, team, record (JSON). Makes this hash the configured admin key; returns its record.
local hash, team = ARGV[1], ARGV[3]
local old = redis.call('GET', P .. 'admin')
redis.call('SET', P .. 'admin', hash)
if old and old ~= hash then
  local record = redis.call('GET', P .. 'key:' .. old)
  if record then
    redis.call('HDEL', P .. 'keys:' .. team, cjson.decode(record).id)
    redis.call('DEL', P .. 'key:' .. old)
  end
end
redis.call('SADD', P .. 'teams', team)
local present = redis.call('GET', P .. 'key:' .. hash)
if present then
  return present
end
redis.call('SET', P .. 'key:' .. hash, ARGV[4])
redis.call('HSET', P .. 'keys:' .. team, ARGV[2], hash)
return ARGV[4]
